"""Sends small frames between processes of a machine as Unix datagrams.

A datagram is in the receiver's queue when ``send`` returns, and wakes no I/O threads as ZeroMQ does. The queue is short (ten, on most
systems). Frames that do not fit go through ZeroMQ.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket

from zfabric.protocol.ids import INCARNATION_BYTES

FRAME_BYTES = 64 * 2**10
"""Larger frames go through ZeroMQ: room for datagrams is small, and copies dominate the cost of many bytes."""
SUFFIX = ".d"
"""Suffix of this socket's name, after the name of the ZeroMQ socket."""


class Datagrams:
    """The socket on which a process receives and sends datagrams. Any thread may send; one at a time receives."""

    __slots__ = ("_asked", "_own", "_path", "_socket", "fd")

    def __init__(self, directory: str, incarnation: bytes) -> None:
        self._own = incarnation
        self._path = path_of(directory, incarnation)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):  # Without a name, all frames to this process go through ZeroMQ.
            self._socket.bind(self._path)
        self.fd = self._socket.fileno()
        self._asked = select.poll()
        self._asked.register(self.fd, select.POLLIN)

    def send(self, path: bytes, frame: bytes) -> bool:
        """Queue a frame at the process at ``path``; return False if it has no queue or no room."""
        try:
            self._socket.sendto(self._own + frame, path)
        except OSError:
            return False
        return True

    @property
    def readable(self) -> bool:
        """Whether a datagram has arrived."""
        return bool(self._asked.poll(0))

    def take(self) -> tuple[bytes, bytes] | None:
        """Return (sender's incarnation, frame); None if none has arrived."""
        try:
            datagram = self._socket.recv(INCARNATION_BYTES + FRAME_BYTES)
        except BlockingIOError:
            return None
        return datagram[:INCARNATION_BYTES], datagram[INCARNATION_BYTES:]

    def close(self) -> None:
        """Close the socket and remove its name."""
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def path_of(directory: str, incarnation: bytes) -> bytes:
    """Return the path at which an incarnation receives datagrams."""
    return os.fsencode(os.path.join(directory, incarnation.hex() + SUFFIX))
