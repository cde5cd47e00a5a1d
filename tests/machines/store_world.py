"""A world for the object store: a shell that performs its effects late and in any order, processes, and a scheduler.

The world keeps its own account of what lies where, so that a store that gives a byte away twice, moves a value under a reader,
or forgets somebody is found out. All messages pass through the codec, as on the wire.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from zfabric.config import Config
from zfabric.machines.client.grants import Grants
from zfabric.machines.common.extents import HEADER_BYTES, PIECE, Ranges, data_start, file_number, footprint
from zfabric.machines.object_store.machine import ObjectStore
from zfabric.protocol import codec
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT

STORE, SCHEDULER, SHELL = b"Ostoretst", b"Lschedule", b"Xshellshe"


def process_id(number: int) -> bytes:
    return b"process" + bytes([number])


def object_id(number: int) -> bytes:
    return number.to_bytes(20, "big")


class Process:
    """A client: its grants, its pins, and its open requests."""

    def __init__(self, incarnation: bytes) -> None:
        self.incarnation = incarnation
        self.grants = Grants()
        self.tellings: Counter[bytes] = Counter()
        self.places: dict[bytes, tuple[int, int]] = {}
        self.waiting: dict[int, m.Reserve] = {}
        self.answers: dict[int, Any] = {}
        self.exact: dict[int, m.Granted] = {}  # room for one object, not yet used
        self.writing: dict[int, tuple[bytes, int]] = {}


class World:
    """The store under test and everything around it."""

    def __init__(self, pieces: int = 5, **config: Any) -> None:
        self.config = Config.of({"grant_bytes": 2 * PIECE, "put_patience": 5.0, **config})
        self.capacity = (pieces + 1) * PIECE
        while self.capacity - data_start(self.capacity) < pieces * PIECE:
            self.capacity += PIECE
        self.now = 100.0
        self.store = ObjectStore(STORE, SCHEDULER, self.config, self.capacity)
        self.processes: dict[bytes, Process] = {}
        self.memory = Ranges()  # what is backed by memory
        self.contents: dict[int, tuple[bytes, int]] = {}  # payload offset -> (object, size), whole and not overwritten
        self.index: dict[int, bytes] = {}
        self.files: dict[int, tuple[bytes, int]] = {}  # number -> (object, size), of those that the store has taken over
        self.unfinished: dict[int, tuple[bytes, int] | None] = {}  # files that processes may write, or have written
        self.pending: list[Any] = []  # effects that take time
        self.values: dict[bytes, int] = {}  # object -> size, of all that ever was
        self.referenced: set[bytes] = set()
        self.rebuildable: set[bytes] = set()
        self.lost: dict[bytes, str] = {}
        self.asked: Counter[tuple[bytes, bytes]] = Counter()
        self.token = 0
        self.sent: list[Any] = []
        self.turn()

    # -- messages --

    def send(self, source: bytes, message: Any) -> None:
        _, _, envelopes = codec.decode(codec.encode(0, 0, [(STORE[:1], source[:1], message)]))
        self.store.step(self.now, source, envelopes[0][2])

    def process(self, number: int) -> Process:
        incarnation = process_id(number)
        return self.processes.setdefault(incarnation, Process(incarnation))

    def turn(self) -> None:
        """One turn of the loop: whatever follows, and the check of everything."""
        for _ in range(20):
            effects = self.store.take_effects(self.now)
            if not effects:
                break
            for effect in effects:
                self.perform(effect)
        else:
            raise AssertionError("the store never comes to rest")
        self.check()

    def perform(self, effect: Any) -> None:
        if isinstance(effect, e.Send):
            self.receive(effect.to, effect.message)
        elif isinstance(effect, e.MakeReady | e.Spill | e.Unspill | e.CheckFile | e.MakeFile):
            if isinstance(effect, e.Spill) and effect.offset:
                assert self.contents[effect.offset] == (effect.object_id, effect.size)
            self.pending.append(effect)
        elif isinstance(effect, e.Punch):
            assert effect.offset % PIECE == effect.size % PIECE == 0
            self.overwrite(effect.offset, effect.size)
            for start, size in self.memory:
                low, high = max(start, effect.offset), min(start + size, effect.offset + effect.size)
                if low < high:
                    self.memory.remove(low, high - low)
        elif isinstance(effect, e.Unlink):
            for number in effect.files:
                assert number in self.files or number in self.unfinished
                assert all(file_number(place[0]) != number for _, places in self.readers() for place in places.values())
                self.files.pop(number, None)
                self.unfinished.pop(number, None)
        elif isinstance(effect, e.WriteValue):
            self.write(effect.offset, effect.object_id, len(effect.value))
        elif isinstance(effect, e.WriteHeader) and effect.offset < 0:
            written = self.unfinished.pop(file_number(effect.offset), None)
            if written is not None:
                self.files[file_number(effect.offset)] = written
        elif isinstance(effect, e.WriteHeader):
            if effect.state == e.SEALED:
                self.index[effect.offset] = self.contents[effect.offset][0]
            else:
                self.index.pop(effect.offset, None)
                assert all(places.get(identifier, (0, 0))[0] != effect.offset for identifier, places in self.readers())
        elif isinstance(effect, e.Clear):
            self.overwrite(effect.offset, effect.size)
        else:
            raise AssertionError(effect)

    @property
    def disk(self) -> dict[bytes, int]:
        """The objects that are in files, and their sizes."""
        return dict(self.files.values())

    def content(self, offset: int) -> tuple[bytes, int] | None:
        """What is at a place."""
        if offset >= 0:
            return self.contents.get(offset)
        return self.files.get(file_number(offset)) or self.unfinished.get(file_number(offset))

    def readers(self) -> list[tuple[bytes, dict[bytes, tuple[int, int]]]]:
        return [(identifier, process.places) for process in self.processes.values() for identifier in process.tellings]

    def receive(self, to: bytes, message: Any) -> None:
        self.sent.append(message)
        if to == SCHEDULER:
            if isinstance(message, m.ObjectsLost):
                for identifier, reason in message.rows:
                    self.on_objects_lost(identifier, reason)
            elif isinstance(message, m.StoreRoom):
                assert -1 <= message.free <= self.capacity // 2
            else:
                for row in message.rows:
                    self.on_located(*row)
            return
        process = self.processes.get(to[1:])
        if process is None:
            return
        if isinstance(message, m.Granted | m.NoSpace):
            request = process.waiting.pop(message.token)
            process.answers[message.token] = message
            if isinstance(message, m.Granted):
                if message.offset < 0:
                    assert not request.wish
                    assert self.unfinished[file_number(message.offset + HEADER_BYTES)] is None
                else:
                    assert self.memory.around(message.offset, message.size) is not None
                if not request.wish:
                    assert message.size == footprint(request.size)
                    process.exact[message.token] = message
                else:
                    process.grants.add(message.offset, message.size)

    def on_objects_lost(self, identifier: bytes, reason: str) -> None:
        assert reason != "evicted" or identifier in self.rebuildable
        self.lost[identifier] = reason
        for key in [key for key in self.asked if key[0] == identifier]:
            del self.asked[key]
        if not reason.startswith("full:"):
            self.referenced.discard(identifier)

    def on_located(self, identifier: bytes, incarnation: bytes, offset: int, size: int) -> None:
        assert self.content(offset) == (identifier, size)
        self.asked[identifier, incarnation] -= 1
        assert self.asked[identifier, incarnation] >= 0
        process = self.processes.get(incarnation)
        if process is not None:
            process.tellings[identifier] += 1
            assert process.places.setdefault(identifier, (offset, size)) == (offset, size)

    # -- memory --

    def overwrite(self, start: int, size: int) -> None:
        """These bytes lose what they held."""
        for offset, (_, length) in list(self.contents.items()):
            if offset - HEADER_BYTES < start + size and start < offset - HEADER_BYTES + footprint(length):
                del self.contents[offset]

    def write(self, offset: int, identifier: bytes, size: int) -> None:
        if offset < 0:
            assert self.unfinished[file_number(offset)] is None, "written to a file that is somebody else's"
            self.unfinished[file_number(offset)] = (identifier, size)
            return
        assert self.memory.around(offset - HEADER_BYTES, footprint(size)) is not None, "written where no memory is"
        self.overwrite(offset - HEADER_BYTES, footprint(size))
        self.contents[offset] = (identifier, size)

    def complete(self, index: int = 0, error: str = "") -> None:
        """Finish (or fail) one of the effects that take time."""
        effect = self.pending.pop(index)
        if isinstance(effect, e.MakeReady):
            if not error:
                for piece in range(effect.offset, effect.offset + effect.size, PIECE):
                    if self.memory.around(piece, PIECE) is None:
                        self.memory.add(piece, PIECE)
            self.send(SHELL, m.ExtentReady(effect.offset, effect.size, error))
        elif isinstance(effect, e.Spill):
            if effect.offset:
                assert self.contents[effect.offset] == (effect.object_id, effect.size), "moved while it was copied"
            if not error:
                assert effect.file not in self.files
                assert effect.file not in self.unfinished
                self.files[effect.file] = (effect.object_id, effect.size)
            self.send(SHELL, m.Spilled(effect.object_id, error))
        elif isinstance(effect, e.MakeFile):
            if not error:
                assert effect.file not in self.files
                assert effect.file not in self.unfinished
                self.unfinished[effect.file] = None
            self.send(SHELL, m.FileReady(effect.file, error))
        elif isinstance(effect, e.CheckFile):
            assert self.files[effect.file] == (effect.object_id, effect.size)
            self.send(SHELL, m.Restored(effect.object_id, error))
        else:
            assert self.files[effect.file] == (effect.object_id, effect.size)
            self.write(effect.offset, effect.object_id, effect.size)
            self.send(SHELL, m.Restored(effect.object_id, error))

    def complete_all(self) -> None:
        for _ in range(500):
            if not self.pending:
                return
            self.complete()
            self.turn()
        raise AssertionError(f"the store is never done: {self.pending} {self.store.statistics()}")

    # -- what processes and the scheduler do --

    def reserve(self, process: Process, size: int, exact: bool = True, patience: float = 5.0, wish: int = 1) -> int:
        """Ask for room: for one object, or for ``wish`` usual grants' worth in one."""
        self.token += 1
        process.waiting[self.token] = m.Reserve(self.token, size, 0 if exact else wish * self.config.grant_bytes, patience)
        self.send(CLIENT + process.incarnation, process.waiting[self.token])
        return self.token

    def put(self, process: Process, number: int, size: int, rebuildable: bool = False) -> bool:
        """Write an object in the grants there are, or where an exact one was granted; False if there is no room yet."""
        offset = process.grants.allocate(size)
        fitting = [token for token, granted in process.exact.items() if granted.size == footprint(size)]
        if offset is None and fitting:
            granted = process.exact.pop(fitting[0])
            offset = process.grants.add_exact(granted.offset, granted.size)
        if offset is None:
            return False
        self.seal(process, object_id(number), offset, size, rebuildable)
        return True

    def seal(self, process: Process, identifier: bytes, offset: int, size: int, rebuildable: bool = False) -> None:
        self.write(offset, identifier, size)
        full = process.grants.finished(offset)
        if full is not None:
            self.send(CLIENT + process.incarnation, m.ReturnGrant(*full))
        self.values[identifier] = size
        self.referenced.add(identifier)
        if rebuildable:
            self.rebuildable.add(identifier)
        self.send(SCHEDULER, m.Sealed(((identifier, offset, size, process.incarnation, rebuildable),)))

    def settle(self) -> None:
        """Let everything that is under way happen."""
        self.turn()
        self.complete_all()

    def put_now(self, process: Process, number: int, size: int, rebuildable: bool = False) -> None:
        token = self.reserve(process, size)
        self.settle()
        answer = process.answers.pop(token)
        assert isinstance(answer, m.Granted), answer
        del process.exact[token]
        self.seal(process, object_id(number), process.grants.add_exact(answer.offset, answer.size), size, rebuildable)
        self.settle()

    def locate(self, number: int, process: Process) -> None:
        self.asked[object_id(number), process.incarnation] += 1
        self.send(SCHEDULER, m.Locate(((object_id(number), process.incarnation),)))

    def unpin(self, process: Process, identifier: bytes) -> None:
        count = process.tellings.pop(identifier)
        del process.places[identifier]
        self.send(CLIENT + process.incarnation, m.Unpin((identifier,) * count))

    def free(self, number: int) -> None:
        self.referenced.discard(object_id(number))
        self.send(SCHEDULER, m.Free((object_id(number),)))

    def return_grants(self, process: Process) -> None:
        for granted in process.exact.values():
            self.send(CLIENT + process.incarnation, m.ReturnGrant(granted.offset, 0))
        process.exact.clear()
        for row in process.grants.idle():
            self.send(CLIENT + process.incarnation, m.ReturnGrant(*row))

    def kill(self, process: Process) -> None:
        del self.processes[process.incarnation]
        for key in [key for key in self.asked if key[1] == process.incarnation]:
            del self.asked[key]
        self.send(SCHEDULER, m.ProcessGone(process.incarnation))

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, calling ``tick`` at each deadline on the way."""
        end = self.now + seconds
        for _ in range(2000):
            deadline = self.store.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.store.tick(self.now)
            self.turn()
        else:
            raise AssertionError("deadlines without end")
        self.now = end
        self.turn()

    def restart(self) -> None:
        """The daemon dies with all that was under way in it; the next one receives what every process holds."""
        self.pending = []
        self.store = ObjectStore(STORE, SCHEDULER, self.config, self.capacity, recovering=True)
        sealed = tuple((identifier, offset, self.contents[offset][1]) for offset, identifier in self.index.items())
        spilled = tuple((*content, number) for number, content in self.files.items())
        self.send(SHELL, m.ArenaFound(sealed, (*spilled, *((b"", 0, number) for number in self.unfinished))))
        for process in self.processes.values():
            held = (*((row.offset, row.size, row.size) for row in process.exact.values()), *process.grants.rows())
            self.send(CLIENT + process.incarnation, m.GrantsHeld(held))
            rows = [(identifier, *process.places[identifier]) for identifier in process.tellings.elements()]
            self.send(CLIENT + process.incarnation, m.Pinned(tuple(rows)))
            for request in process.waiting.values():
                self.send(CLIENT + process.incarnation, request)
        assert [effect for effect in self.store.take_effects(self.now) if not isinstance(effect, e.Send)] == []
        known = {identifier for identifier, _, _ in sealed} | set(self.disk)
        self.referenced &= known
        asked, self.asked = self.asked, Counter()
        self.send(SCHEDULER, m.RetainOnly(tuple(sorted(self.referenced))))
        for (identifier, incarnation), count in asked.items():
            for _ in range(count):
                self.locate(int.from_bytes(identifier, "big"), self.processes[incarnation])
        self.turn()

    # -- what must always hold --

    def check(self) -> None:
        self.store.check_invariants()
        for process in self.processes.values():
            for identifier, (offset, size) in process.places.items():
                assert self.content(offset) == (identifier, size), "a reader's value was moved or overwritten"
        for offset, identifier in self.index.items():
            assert self.contents[offset][0] == identifier, "the index names what is not there"
