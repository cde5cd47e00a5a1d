"""A simulated arena and disk, which outlive the daemon. Values are symbols with a size; the arena records where each lies whole."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from zfabric.machines.common.extents import HEADER_BYTES, PIECE, data_start, file_number, footprint
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import short
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import Rows


class Content(NamedTuple):
    """A sealed object; ``payload`` is the symbol that stands for its bytes."""

    object_id: bytes
    size: int
    payload: bytes


class SimArena:
    """Shared memory and disk of a node."""

    def __init__(self, fail: Callable[[str], NoReturn], pieces: int) -> None:
        self.fail = fail
        capacity = (pieces + 1) * PIECE
        while capacity - data_start(capacity) < pieces * PIECE:
            capacity += PIECE
        self.capacity = capacity
        self.contents: dict[int, Content] = {}
        """Whole objects, by the offset of their payload."""
        self.void: set[int] = set()
        """Offsets of objects whose headers the store has voided."""
        self.index: set[int] = set()
        self.disk: dict[int, Content] = {}
        """Files that belong to the object store, by number."""
        self.unfinished: dict[int, Content | None] = {}
        """Files that processes may write or have written, and that the store does not own yet."""

    def write(self, offset: int, content: Content) -> None:
        """Write and seal an object at its payload's offset. Objects that it overlaps are no longer whole."""
        if offset < 0:
            if file_number(offset) not in self.unfinished:
                self.fail(f"{short(content.object_id)} is written to file {file_number(offset)}, which nobody was given")
            self.unfinished[file_number(offset)] = content
            return
        self.overwrite(offset - HEADER_BYTES, footprint(content.size))
        self.contents[offset] = content
        self.void.discard(offset)

    def overwrite(self, start: int, size: int) -> None:
        """Remove every object that overlaps this range."""
        for offset, content in list(self.contents.items()):
            if offset - HEADER_BYTES < start + size and start < offset - HEADER_BYTES + footprint(content.size):
                del self.contents[offset]

    def content(self, reader: str, object_id: bytes, offset: int) -> Content:
        """Return the object at a place. Fail the world if another one, or none, is whole there."""
        number = file_number(offset)
        content = self.contents.get(offset) if offset >= 0 else self.disk.get(number) or self.unfinished.get(number)
        if content is None or content.object_id != object_id:
            found = "nothing whole" if content is None else short(content.object_id)
            self.fail(f"{reader} reads {short(object_id)} at {offset} and finds {found} there")
        return content

    def read(self, reader: str, object_id: bytes, offset: int, size: int) -> bytes:
        """Return the payload at a place. Fail the world unless this object is whole there, with this size."""
        content = self.content(reader, object_id, offset)
        if content.size != size:
            self.fail(f"{reader} reads {size} bytes of {short(object_id)}, and it has {content.size}")
        return content.payload

    def copy(self, object_id: bytes, offset: int, size: int) -> bytes | None:
        """Return the payload at a place for which the reader has no pin, if this object is there."""
        content = self.contents.get(offset)
        if offset in self.void or content is None or content[:2] != (object_id, size):
            return None
        return content.payload

    def found(self) -> m.ArenaFound:
        """Report sealed objects and files to a restarted daemon."""
        places = [(offset, self.contents[offset]) for offset in sorted(self.index) if offset in self.contents]
        sealed = tuple((content.object_id, offset, content.size) for offset, content in places)
        spilled: Rows = tuple((content.object_id, content.size, number) for number, content in self.disk.items())
        whole = [*(content for _, content in places), *self.disk.values()]
        inside = tuple((each.object_id, refs_in(each.payload)) for each in whole if refs_in(each.payload))
        return m.ArenaFound(sealed, (*spilled, *((b"", 0, number) for number in self.unfinished)), inside)


class SimStorage:
    """Performs the effects of one daemon's object store in order, each with a delay of its own. Effects not begun are lost with the daemon.

    ``answer`` receives the results. ``full`` returns the error of each write to disk, or an empty string.
    """

    def __init__(
        self,
        arena: SimArena,
        seed: str,
        after: Callable[[float, Callable[[], object]], None],
        answer: Callable[[m.Message], None],
        full: Callable[[], str],
    ) -> None:
        self.arena = arena
        self.after = after
        self._answer = answer
        self._full = full
        self._stopped = False
        self._random = random.Random(seed)
        self._work: deque[Any] = deque()

    @property
    def idle(self) -> bool:
        """Whether all effects were performed."""
        return not self._work

    def stop(self) -> None:
        """Perform no more effects: the daemon has died."""
        self._stopped = True

    def perform(self, effect: Any) -> None:
        """Perform an effect after all earlier ones. Only headers, and values that the store writes itself, do not wait."""
        if isinstance(effect, e.WriteValue | e.WriteHeader | e.Clear):
            self._do(effect)
            return
        self._work.append(effect)
        if len(self._work) == 1:
            self._next()

    def _next(self) -> None:
        self.after(0.0001 + 0.002 * self._random.random(), self._finish)

    def _finish(self) -> None:
        if self._stopped:
            return
        answer = self._do(self._work[0])
        self._work.popleft()
        if answer is not None:
            self._answer(answer)
        if self._work:
            self._next()

    def _do(self, effect: Any) -> m.Message | None:
        arena = self.arena
        if isinstance(effect, e.WriteHeader) and effect.offset < 0:
            content = arena.unfinished.pop(file_number(effect.offset), None)
            if content is not None:
                arena.disk[file_number(effect.offset)] = content
        elif isinstance(effect, e.WriteHeader):
            if effect.state == e.SEALED:
                arena.index.add(effect.offset)
            else:
                arena.index.discard(effect.offset)
                arena.void.add(effect.offset)
        elif isinstance(effect, e.Clear):
            arena.overwrite(effect.offset, effect.size)
        elif isinstance(effect, e.WriteValue):
            arena.write(effect.offset, Content(effect.object_id, len(effect.value), effect.value))
        elif isinstance(effect, e.ReadValue):
            payload = arena.read("the daemon", effect.object_id, effect.offset, effect.size)
            return m.ValueRead(effect.object_id, payload, "")
        elif isinstance(effect, e.MakeReady):
            return m.ExtentReady(effect.offset, effect.size, "")
        elif isinstance(effect, e.Punch):
            arena.overwrite(effect.offset, effect.size)
        elif isinstance(effect, e.Spill):
            content = arena.contents.get(effect.offset) if effect.offset else Content(effect.object_id, effect.size, effect.value)
            if content is None or content.object_id != effect.object_id:
                self.arena.fail(f"{short(effect.object_id)} is to be spilled and is not where it should be")
            if self._full():
                return m.Spilled(effect.object_id, "no space left on device")
            arena.disk[effect.file] = content
            return m.Spilled(effect.object_id, "")
        elif isinstance(effect, e.Unspill):
            content = arena.disk.get(effect.file)
            if content is None:
                return m.Restored(effect.object_id, "no such file")
            arena.write(effect.offset, content)
            return m.Restored(effect.object_id, "")
        elif isinstance(effect, e.CheckFile):
            content = arena.disk.get(effect.file)
            whole = content is not None and content[:2] == (effect.object_id, effect.size)
            return m.Restored(effect.object_id, "" if whole else "no such file")
        elif isinstance(effect, e.MakeFile):
            if self._full():
                return m.FileReady(effect.file, "no space left on device")
            if effect.file in arena.disk or effect.file in arena.unfinished:
                self.arena.fail(f"file {effect.file} is made a second time")
            arena.unfinished[effect.file] = None
            return m.FileReady(effect.file, "")
        elif isinstance(effect, e.Unlink):
            for number in effect.files:
                arena.disk.pop(number, None)
                arena.unfinished.pop(number, None)
        return None
