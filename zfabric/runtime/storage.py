"""Performs the object store's effects on arena and disk, in a thread of the daemon.

Effects keep their order: a range is never punched before its spill has ended. Headers, cleared rooms and values of the store are written at
once by the caller's thread, in microseconds: the same turn notifies the writer and gives the room to others, and if the daemon then dies,
only the value's header is left. No other effect touches headers, and no queued effect these extents.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from zfabric.adapters.arena import Arena
from zfabric.adapters.spill import SpillDirectory
from zfabric.machines.common.extents import file_number
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m

AT_ONCE = (e.WriteHeader, e.WriteValue, e.Clear)


class Storage:
    """Performs one store's effects. The thread calls ``answer`` with messages for the store and the scheduler."""

    def __init__(self, arena_path: str, capacity: int, spill_path: str, answer: Callable[[m.Message], None]) -> None:
        self._arena = Arena(arena_path, capacity, writable=True) if capacity else None
        self._spill = SpillDirectory(spill_path)
        self._answer = answer
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def found(self) -> m.ArenaFound:
        """What a restarted daemon finds: sealed objects, files, and refs inside."""
        sealed = self._arena.find_sealed() if self._arena is not None else []
        spilled = self._spill.list()
        inside = [(object_id, self._arena.refs_inside(offset, size)) for object_id, offset, size in sealed if self._arena is not None]
        inside += [(object_id, self._spill.refs_inside(number, size)) for object_id, size, number in spilled if object_id]
        return m.ArenaFound(tuple(sealed), tuple(spilled), tuple(each for each in inside if each[1]))

    def perform(self, effect: Any) -> None:
        """Perform an effect, or queue it for the thread."""
        if type(effect) in AT_ONCE:
            self._do(effect)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
            self._thread.start()
        self._work.put(effect)

    def _run(self) -> None:
        while (effect := self._work.get()) is not None:
            self._do(effect)

    def _do(self, effect: Any) -> None:
        arena = self._arena
        if arena is None:
            return
        if type(effect) is e.WriteHeader and effect.offset >= 0:
            arena.mark(effect.offset, effect.state)
        elif type(effect) is e.WriteHeader:
            with contextlib.suppress(OSError):  # It may have been renamed before a restart; ``CheckFile`` detects a missing one.
                self._spill.take_over(file_number(effect.offset))
        elif type(effect) is e.Clear:
            arena.clear(effect.offset, effect.size)
        elif type(effect) is e.WriteValue:
            arena.write(effect.offset, effect.object_id, effect.value)
        elif type(effect) is e.MakeReady:
            self._answer(m.ExtentReady(effect.offset, effect.size, arena.make_ready(effect.offset, effect.size)))
        elif type(effect) is e.Punch:
            arena.punch(effect.offset, effect.size)
        elif type(effect) is e.Spill:
            self._answer(m.Spilled(effect.object_id, self._attempt(self._write, effect, arena)))
        elif type(effect) is e.Unspill:
            self._answer(m.Restored(effect.object_id, self._attempt(self._read, effect, arena)))
        elif type(effect) is e.CheckFile:
            self._answer(m.Restored(effect.object_id, self._attempt(self._check, effect, arena)))
        elif type(effect) is e.MakeFile:
            self._answer(m.FileReady(effect.file, self._attempt(self._make, effect, arena)))
        elif type(effect) is e.ReadValue:
            value, error = bytearray(effect.size), ""
            try:
                if effect.offset >= 0:
                    value[:] = arena.view(effect.offset, effect.size)
                else:
                    self._spill.read_into(file_number(effect.offset), effect.object_id, memoryview(value))
            except OSError as problem:
                error = str(problem) or type(problem).__name__
            self._answer(m.ValueRead(effect.object_id, b"" if error else bytes(value), error))
        elif type(effect) is e.Unlink:
            for number in effect.files:
                with contextlib.suppress(OSError):
                    self._spill.remove(number)

    def _attempt(self, action: Callable[[Any, Arena], None], effect: Any, arena: Arena) -> str:
        try:
            action(effect, arena)
        except OSError as error:
            return str(error) or type(error).__name__
        return ""

    def _write(self, effect: e.Spill, arena: Arena) -> None:
        data = arena.view(effect.offset, effect.size) if effect.offset else effect.value
        self._spill.write(effect.file, effect.object_id, data)

    def _read(self, effect: e.Unspill, arena: Arena) -> None:
        self._spill.read_into(effect.file, effect.object_id, arena.writable(effect.offset, effect.size))
        arena.seal(effect.offset, effect.object_id, effect.size)

    def _check(self, effect: e.CheckFile, arena: Arena) -> None:
        self._spill.check(effect.file, effect.object_id, effect.size)

    def _make(self, effect: e.MakeFile, arena: Arena) -> None:
        self._spill.make(effect.file, effect.size)

    def close(self) -> None:
        """End after the queued effects."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(1.0)
