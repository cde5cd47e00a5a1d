"""Floors: what the same work costs where there is nothing but the mechanism underneath.

A figure alone shows little on an unknown machine, and a floor measured last week shows little of a virtual machine
today. So every question measures its floor beside itself, in turns.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from perf import machine

WINDOW = 500
"""Messages under way in a pipelined echo: below the default high-water mark of 1,000, so that nothing blocks."""


READY_BYTES = 32 * 2**20
"""Memory got at once before it is written, where nobody used it before."""


class Echo:
    """A process that sends back what it gets: pyzmq's DEALER here, its ROUTER there, and nothing else.

    It is reached over an ipc socket, or with ``encrypted`` over TCP with CURVE, as another node is. Use as a context manager. While nothing
    is sent it takes no CPU. With ``quick``, samples that have no count of their own only show that it works.
    """

    def __init__(self, encrypted: bool = False, quick: bool = False) -> None:
        self._encrypted = encrypted
        self._round_trips, self._messages = (100, 1_000) if quick else (3_000, 50_000)

    def __enter__(self) -> Echo:
        import zmq

        self._directory = tempfile.mkdtemp(prefix="zfabric-perf-")
        address = f"ipc://{self._directory}/echo"
        keys = [key.decode() for key in zmq.curve_keypair()] if self._encrypted else []
        if self._encrypted:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self._process = subprocess.Popen([sys.executable, "-m", "perf.floors"], cwd=machine.ROOT, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([address, *keys]).encode() + b"\n")
        self._process.stdin.flush()
        self._context: zmq.Context[Any] = zmq.Context(1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if self._encrypted:
            public, secret = zmq.curve_keypair()
            self._socket.curve_serverkey, self._socket.curve_publickey, self._socket.curve_secretkey = keys[0].encode(), public, secret
        self._socket.connect(address)
        self.round_trip_us(100)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._context.destroy(linger=0)
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._directory)

    def round_trip_us(self, count: int | None = None, size: int = 100) -> float:
        """One message there and back, one after the other, in µs."""
        count, payload, socket = count or self._round_trips, bytes(size), self._socket
        begin = time.perf_counter()
        for _ in range(count):
            socket.send(payload)
            socket.recv()
        return (time.perf_counter() - begin) / count * 1e6

    def messages_per_second(self, count: int | None = None, size: int = 100) -> float:
        """Messages there and back a second, many under way at once."""
        import zmq

        count, payload, socket = count or self._messages, bytes(size), self._socket
        sent = received = 0
        begin = time.perf_counter()
        while received < count:
            while sent < count and sent - received < WINDOW:
                socket.send(payload)
                sent += 1
            socket.recv()
            received += 1
            try:
                while received < sent:
                    socket.recv(zmq.NOBLOCK)
                    received += 1
            except zmq.Again:
                pass
        return count / (time.perf_counter() - begin)

    def cpu_us_per_message(self, count: int = 100_000) -> float:
        """CPU time of both processes, all threads, for one message there and back, pipelined."""
        return self._cpu_us(count, self.messages_per_second)

    def cpu_us_per_round_trip(self, count: int = 10_000) -> float:
        """The same, one after the other: each wakes a process up."""
        return self._cpu_us(count, self.round_trip_us)

    def _cpu_us(self, count: int, work: Callable[[int], float]) -> float:
        pids = (os.getpid(), self._process.pid)
        before = machine.cpu_seconds_fine(pids)
        work(count)
        return (machine.cpu_seconds_fine(pids) - before) / count * 1e6


def _serve(address: str, public: str = "", secret: str = "") -> None:
    """The other process of ``Echo``: until its parent ends."""
    import zmq

    context: zmq.Context[Any] = zmq.Context(1)
    socket = context.socket(zmq.ROUTER)
    socket.set_hwm(0)  # At its limit a ROUTER drops messages, and the other side would wait for them for ever.
    if public:
        socket.curve_server, socket.curve_publickey, socket.curve_secretkey = True, public.encode(), secret.encode()
    socket.bind(address)
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)  # readable once the parent is gone
    while True:
        if sys.stdin.fileno() in dict(poller.poll()):
            os._exit(0)
        try:
            while True:
                socket.send_multipart(socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            pass


class Copies:
    """memcpy over more memory than the last-level cache holds, every page touched before."""

    def __init__(self, total: int) -> None:
        import numpy

        self._target = numpy.ones(total, numpy.uint8)

    def gigabytes_per_second(self, piece: Any) -> float:
        """Copy the array ``piece`` again and again, to one place after the other, until all of the target is written."""
        import numpy

        target, size = self._target, piece.nbytes
        source = piece.view(numpy.uint8).reshape(-1)
        begin = time.perf_counter()
        copied = 0
        while copied + size <= target.nbytes:
            target[copied : copied + size] = source
            copied += size
        return copied / (time.perf_counter() - begin) / 1e9


def fresh_copies_gigabytes_per_second(piece: Any, total: int) -> float:
    """The array ``piece`` copied again and again into shared memory that nobody used before, by one thread, without a cluster.

    Whoever wants such memory has to get its pages first, as the object store does: huge ones where they come fast. Two threads, of which
    one gets pages while the other copies, can be up to twice as fast.
    """
    from zfabric.adapters.arena import Arena, create_arena
    from zfabric.machines.common.extents import PIECE, data_start, round_up

    source = memoryview(piece).cast("B")
    count = max(1, total // len(source))
    size = 2 * (count * len(source) + READY_BYTES)
    descriptor = create_arena("", size)
    try:
        arena = Arena(f"/proc/self/fd/{descriptor}", size, writable=True)
        begin = time.perf_counter()
        ready = offset = data_start(arena.size)
        for _ in range(count):
            while ready < offset + len(source):
                step = round_up(max(READY_BYTES, len(source)), PIECE)
                problem = arena.make_ready(ready, step)
                if problem:
                    raise MemoryError(problem)
                ready += step
            arena.writable(offset, len(source))[:] = source
            offset += len(source)
        seconds = time.perf_counter() - begin
        arena.close()
    finally:
        os.close(descriptor)
    return count * len(source) / seconds / 1e9


def pickles_per_second(value: Any, count: int = 100_000) -> float:
    """Small values pickled and kept under a name, a second."""
    kept: dict[int, bytes] = {}
    begin = time.perf_counter()
    for number in range(count):
        kept[number] = pickle.dumps(value, 5)
    return count / (time.perf_counter() - begin)


def unpickles_per_second(value: Any, count: int = 100_000) -> float:
    """Small values looked up and unpickled, a second."""
    kept = {0: pickle.dumps(value, 5)}
    begin = time.perf_counter()
    for _ in range(count):
        pickle.loads(kept[0])
    return count / (time.perf_counter() - begin)


def view_us(array: Any, count: int = 2000) -> float:
    """An array unpickled onto memory that is there already, in µs."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(array, 5, buffer_callback=buffers.append)
    views = [buffer.raw().toreadonly() for buffer in buffers]
    begin = time.perf_counter()
    for _ in range(count):
        pickle.loads(data, buffers=views)
    return (time.perf_counter() - begin) / count * 1e6


def interpreter_ms() -> float:
    """A Python process that does nothing, from its start to its end, in ms."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, cwd=machine.ROOT)
    return (time.perf_counter() - begin) * 1e3


def interpreter_mib() -> float:
    """Unique memory of a Python process that does nothing, in MiB."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=machine.ROOT
    )
    assert process.stdout is not None
    process.stdout.readline()
    size = machine.unique_bytes(process.pid)
    process.communicate(b"\n")
    return size / machine.MiB


if __name__ == "__main__":
    _serve(*json.loads(sys.stdin.buffer.raw.readline()))  # Unbuffered: what follows is polled.
