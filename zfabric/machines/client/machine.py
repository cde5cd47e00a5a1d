"""The client: what one process submits, holds, waits for. A driver, a worker and an actor have one each.

What a user's call does is a plain method here, not a message; ``step`` takes in what the fabric answers. Everything said to the
local scheduler goes through one ordered outbox of batches, so that "hold before release" and "put before the row that names it"
need no thought. Rows are kept until their outcome has come, values and (for values in the arena) their rows until the last ref is
gone: after a restart of the daemon, ``rejoin`` says all of it again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from zfabric.config import ROWS_MAX, Config
from zfabric.machines.client import rejoin
from zfabric.machines.client.calls import Calls
from zfabric.machines.client.direct_submission import DirectSubmitter
from zfabric.machines.client.entries import ABSENT, PENDING, ObjectEntry
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.pins import Pins, Place
from zfabric.machines.client.reservations import Reservations
from zfabric.machines.client.retention import RetainedObjects
from zfabric.machines.client.unread import UnreadFailures
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.ids import (
    FIRST_RETURN,
    LOCAL_SCHEDULER,
    OBJECT_STORE,
    TASK_BYTES,
    WORKER,
    Address,
    is_call,
    object_id,
)
from zfabric.protocol.machine import Diagnosis, Handler, Handlers, InvariantViolation
from zfabric.protocol.messages import CREATING, DEAD, OK, Row
from zfabric.protocol.options import option

CallTerms = tuple[bytes, int, bool, bool]
"""Of a call: the actor's id, and ``retries``, ``keeps`` and ``unordered`` as ``Calls.call`` takes them."""


class Client:
    """One process's side of the fabric. The shell holds one lock around every call."""

    def __init__(self, address: Address, config: Config) -> None:
        self.address = address
        self.config = config
        self.incarnation = address[1:]
        self.scheduler: Address = b""
        self.store: Address = b""
        self.job = b""
        self.node = b""
        self.welcomed = False
        self.farewell: str | None = None
        self.leaving = False
        """Whether this process said goodbye and has not heard farewell."""
        self.refused: m.Refused | None = None
        self.outbox = Outbox()
        self.entries: dict[bytes, ObjectEntry | Row | bytes] = {}
        self.unfinished = 0
        """Tasks submitted whose outcome has not come."""
        self.failures = 0
        """Failed outcomes received so far: who waits for many objects searches them for a failure only after this has changed."""
        self.several: dict[bytes, tuple[Row, int]] = {}
        """Rows of unfinished tasks that do not have exactly one value, and how many they have."""
        self.cancelled: dict[bytes, tuple[bool, bool]] = {}
        """Objects without an outcome whose tasks this process asked to cancel: (force, recursive)."""
        self.fetching: set[bytes] = set()
        """Objects asked for, and not answered yet."""
        self.gets: dict[int, Sequence[bytes]] = {}
        """Objects that each ``get`` in progress waits for: what has come stays until all has, so room for one is never made of another."""
        self.watchers: dict[bytes, list[Callable[[bytes], None]]] = {}
        """Whom to tell once an object is at hand."""
        self.handing = DirectSubmitter(self)
        self.functions: dict[bytes, Row] = {}
        self._classes: set[bytes] = set()
        """Functions whose tasks make actors."""
        self.room = Reservations(config, self.token, self.tell_store)
        self.pins = Pins(self.entries, partial(self.outbox.add, m.Unpin))
        self.written: dict[bytes, Row] = {}
        """``Put`` rows of values in the arena that the store is not known to have taken over."""
        self.dropped: deque[bytes] = deque()
        """Refs that finalizers let go of. They take no lock; ``RetainedObjects.settle`` does the rest."""
        self.unviewed: deque[bytes] = deque()
        """Objects that a value looked into which is gone: likewise."""
        self.keeping = RetainedObjects(self)
        self.unread = UnreadFailures(self)
        self.calls = Calls(self)
        self.asked: dict[int, m.Query] = {}
        """Questions without an answer: a new daemon has not heard them."""
        self.answers: dict[int, m.Answer] = {}
        self.kept: dict[bytes, str] = {}
        self.notices: deque[m.Notice | m.LogLines] = deque()
        self.printed = False
        """Whether something was printed that is to be shown ahead of an outcome: here, or by what has ended elsewhere."""
        self.counts: Counter[str] = Counter()
        self._controls: list[Effect] = []
        self.submitted: deque[tuple[Row, CallTerms | None]] = deque()
        """Plain rows of tasks, and of calls with their terms, that the tables do not have yet: see ``take_up``."""
        self._next_token = 1
        self.handlers = Handlers(self.counts, self._accepted())

    # -- saying things --

    @property
    def unsent(self) -> int:
        """Rows in the batch that is being filled."""
        return len(self.outbox.tail)

    @property
    def has_unsent(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self.submitted or self.outbox or self._controls or self.calls.unsent or self.handing.unsent)

    @property
    def urgent(self) -> bool:
        """Whether some of it is to leave at once: all but refs that were let go of, and tasks that a worker has already."""
        return bool(self.submitted or self._controls) or self.outbox.urgent or self.calls.unsent or self.handing.urgent

    def token(self) -> int:
        """A number for a question."""
        self._next_token += 1
        return self._next_token

    # -- what users do --

    def export(self, function_id: bytes, name: str, payload: bytes, options: tuple[Row, ...]) -> None:
        """Make a function known to the job."""
        if function_id not in self.functions:
            row = (function_id, name, payload, options)
            self.functions[function_id] = row
            if option(options, "actor") is not None:
                self._classes.add(function_id)
            self.outbox.add(m.Export, row)

    def submit(self, row: Row, returns: int) -> bytes:
        """Queue a task row; this process holds its values. The id of the first one."""
        fresh = True
        identifier: bytes = row[0] + FIRST_RETURN
        if returns == 1:
            if self.entries.setdefault(identifier, row) is not row:  # Each call has a row of its own, also where it repeats another one.
                fresh = self._submit_again(identifier, row)
        else:
            fresh = row[0] not in self.several
            if fresh:
                self.several[row[0]] = (row, returns)
            for index in range(returns):
                self._submit_again(object_id(row[0], index), None)
        if fresh:
            self.unfinished += 1
            if row[3] or len(row) > 4:
                self.calls.results.share(self.keeping.need(row))
            if row[1] in self._classes:
                self.keeping.lineage[row[0]] = row
                self.keeping.need(row)
        if self.unfinished == 1 and row[1] in self.handing.hands and fresh and len(row) == 4 and not row[3] and returns == 1:
            self.handing.hand(row)
            return identifier
        outbox = self.outbox
        if outbox.kind is m.Submit and len(outbox.tail) < ROWS_MAX:
            outbox.tail.append(row)
        else:
            outbox.add(m.Submit, row)
        return identifier

    def take_up(self) -> None:
        """Enter into the tables what was appended to ``submitted``, in order.

        Appending is one step, which no signal divides. The shell has this done before it looks at a table.
        """
        submitted = self.submitted
        while submitted:
            row, terms = submitted.popleft()
            if terms is None:
                self.submit(row, 1)
            else:
                self.calls.call(terms[0], row, 1, terms[1], terms[2], terms[3])

    def _submit_again(self, identifier: bytes, row: Row | None) -> bool:
        """A value that may be known here, since its parent ran here before or a ref came from elsewhere. True if its row is news."""
        entry = self.entry(identifier)
        if entry is None:
            entry = self.entries[identifier] = ObjectEntry(0, PENDING, None, None)
        entry.refs += 1
        if entry.data is None:
            entry.status = PENDING
        if row is None or entry.row is not None:
            return False
        entry.row = row
        return True

    def put(self, identifier: bytes, value: bytes | Place, contained: tuple[bytes, ...], durable: bool) -> None:
        """A value that exists, inline or written into one of this process's grants."""
        self.entries[identifier] = value if type(value) is bytes else ObjectEntry(1, OK, value, None)
        if contained:
            self.calls.results.share(contained)
            self.keeping.contain(identifier, contained)
        if type(value) is tuple:
            self.written[identifier] = (identifier, value, contained, durable)
        self.outbox.add(m.Put, (identifier, value, contained, durable))

    def entry(self, identifier: bytes) -> ObjectEntry | None:
        """The entry of an object, or None if it has none."""
        found = self.entries.get(identifier)
        if found is None or type(found) is ObjectEntry:
            return found
        row = None if type(found) is bytes else found
        entry = self.entries[identifier] = ObjectEntry(1, OK, found, None) if row is None else ObjectEntry(1, PENDING, None, row)  # type: ignore[arg-type]
        return entry

    def all_entries(self) -> list[tuple[bytes, ObjectEntry]]:
        """All of them, by object."""
        return [(identifier, entry) for identifier in list(self.entries) if (entry := self.entry(identifier)) is not None]

    def add_reference(self, identifier: bytes) -> None:
        """One more ref."""
        entry = self.entry(identifier)
        if entry is None:
            entry = self.entries[identifier] = ObjectEntry(0, ABSENT, None, None)
            if is_call(identifier):
                self.calls.results.ids.add(identifier)  # Another process's, which made it known.
            if self.keeping.values and identifier[:TASK_BYTES] in self.keeping.values:
                self.keeping.values[identifier[:TASK_BYTES]].add(identifier)
        if entry.refs == 0:
            self.outbox.add(m.Hold, identifier)
        entry.refs += 1

    def lookup(self, identifier: bytes) -> ObjectEntry:
        """The entry of an object that this process has a ref to, or (a ref kept by other means) a new one without refs."""
        entry = self.entry(identifier)
        if entry is None:
            entry = self.entries[identifier] = ObjectEntry(0, ABSENT, None, None)
            self.outbox.add(m.Hold, identifier)
        return entry

    def want(self, identifiers: Iterable[bytes]) -> None:
        """Ask for values that have not come and will not come by themselves."""
        entries = self.entries
        for identifier in identifiers:
            found = entries.get(identifier)
            if type(found) is bytes or type(found) is tuple:
                continue
            entry = self.lookup(identifier)
            if entry.status != PENDING and entry.data is None and identifier not in self.fetching:
                self.fetching.add(identifier)
                self.outbox.add(m.Fetch, identifier)

    def at_hand(self, identifier: bytes) -> bool:
        """Whether the outcome is here: ``get`` need not wait."""
        found = self.entries.get(identifier)
        return type(found) is bytes or (type(found) is ObjectEntry and found.data is not None)

    def known(self, identifier: bytes) -> bool:
        """Whether the object has an outcome, here or elsewhere."""
        found = self.entries.get(identifier)
        return type(found) is bytes or (type(found) is ObjectEntry and found.status >= 0)

    def first_failure(self, identifiers: Iterable[bytes]) -> tuple[bytes, ...]:
        """The first of these objects whose outcome is a failure that is here; empty if none is."""
        for identifier in identifiers:
            found = self.entries.get(identifier)
            if type(found) is ObjectEntry and found.status > OK:
                if found.data is not None:
                    return (identifier,)
                self.want((identifier,))
        return ()

    def watch(self, identifier: bytes, watcher: Callable[[bytes], None]) -> None:
        """Call ``watcher`` once the outcome is here."""
        self.watchers.setdefault(identifier, []).append(watcher)
        self.want((identifier,))

    def give_up_watching(self) -> None:
        """No outcome will come any more: all who watch for one are told so, as if it had."""
        while self.watchers:
            identifier, watchers = self.watchers.popitem()
            for watcher in watchers:
                watcher(identifier)

    def cancel(self, identifiers: tuple[bytes, ...], force: bool, recursive: bool) -> None:
        """Ask for tasks and calls to be stopped. The children of a call are the scheduler's business, like those of a task."""
        self.unread.expected(identifiers)
        tasks = tuple(each for each in identifiers if not self.calls.cancel(each, "cancelled"))
        for identifier in tasks:
            if not self.known(identifier):
                self.cancelled[identifier] = (force, recursive)
        named = identifiers if recursive else tasks
        if named:
            self.say(m.Cancel(named, force, recursive))

    def kill(self, actor_id: bytes, no_restart: bool) -> None:
        """End an actor."""
        target = self.calls.meet(actor_id)
        if target.state == DEAD:
            return
        target.state = CREATING  # Whatever it was: what this process calls from now on is for after its end.
        self.calls.killed[actor_id] = no_restart or self.calls.killed.get(actor_id, False)
        self.say(m.KillActor(actor_id, no_restart))

    def query(self, token: int, what: str, arguments: Row) -> None:
        """Ask the node's daemon; the answer comes under ``token``."""
        question = self.asked[token] = m.Query(token, what, arguments)
        self.say(question)

    def tell_store(self, message: m.Message) -> None:
        """Say something to the object store."""
        self._controls.append(Send(self.store, message))

    def say(self, message: m.Message) -> None:
        """Say something to the local scheduler, in order with the rest."""
        if type(message) is m.Goodbye:
            self.leaving = True
        if type(message) in (m.Goodbye, m.Query):
            self.handing.say_what_was_told()
        self.outbox.add_message(message)

    # -- the contract --

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Handle one message of the fabric; calls that waited for what it has brought may then go."""
        self.handlers[type(message)](now, source, message)
        if self.calls.awaited:
            self.calls.news_in(message)
        if self.calls._blocked or self.calls._news:
            self.calls.progress()

    def on_results(self, now: float, source: Address, message: m.Results) -> None:
        """Outcomes of tasks this process submitted."""
        entries, watchers, keeping = self.entries, self.watchers, self.keeping
        if self.cancelled:
            self._stopped(message)
        finished = 0
        for task_id, status, outputs in message.rows:
            identifier = task_id + FIRST_RETURN
            entry = entries.get(identifier)
            if type(entry) is tuple:
                if status == OK and outputs and type(outputs[0]) is bytes and not watchers:
                    # The commonest outcome, in place: the value itself takes the row's place.
                    finished += 1
                    entries[identifier] = outputs[0]
                    if entry[3] or len(entry) > 4:
                        keeping.ended(entry)
                    continue
                entry = self.entry(identifier)
            if type(entry) is not ObjectEntry or entry.row is None:
                self._several(task_id, status, outputs)
                continue
            finished += 1
            self.failures += status != OK
            row, entry.row = entry.row, None
            if status != OK:
                self.unread.read(row[3])
                self.unread.came(task_id, status, outputs, (identifier,) if entry.refs > 0 else ())
            kept = entry.refs > 0 and not (outputs and outputs[0] is not None)  # as lineage, which names what it would need
            if (row[3] or len(row) > 4) and not (kept and task_id not in keeping.lineage):
                keeping.ended(row)
            if entry.refs <= 0:
                del entries[identifier]
                entry.status, entry.data = status, outputs[0] if outputs else None
                keeping.settled_unseen(identifier, entry, row)
                continue
            entry.status = status
            data = entry.data = outputs[0] if outputs else None
            if data is None:
                keeping.lineage[task_id] = row
            if watchers and identifier in watchers:
                self._notify(identifier, entry)
        self.unfinished -= finished
        if source[:1] == WORKER:
            self.handing.heard(source[1:], message.rows)

    def _stopped(self, message: m.Results) -> None:
        """Whatever came of tasks that were to be cancelled, it is final."""
        outcomes = {task_id for task_id, _, _ in message.rows}
        for identifier in [each for each in self.cancelled if each[:TASK_BYTES] in outcomes]:
            del self.cancelled[identifier]

    def _several(self, task_id: bytes, status: int, outputs: Row) -> None:
        """The outcome of a task with several values or none, or one that is heard again."""
        row, count = self.several.pop(task_id, (None, 0))
        if row is None:
            return
        self.unfinished -= 1
        self.failures += status != OK
        if status != OK:
            self.unread.read(row[3])
            names = (object_id(task_id, index) for index in range(count))
            self.unread.came(task_id, status, outputs, [each for each in names if each in self.entries])
        keeping = self.keeping
        known_before = task_id in keeping.lineage
        held: set[bytes] = set()
        for index in range(count):
            identifier = object_id(task_id, index)
            entry = self.entry(identifier)
            if entry is None:
                if identifier in keeping.needed:
                    keeping.retired[identifier] = ObjectEntry(0, status, None, row)
                continue
            entry.status = status
            entry.data = outputs[index if status == OK else 0] if outputs else None
            if entry.data is None:
                keeping.lineage[task_id] = row
            held.add(identifier)
            self._notify(identifier, entry)
        if task_id in keeping.lineage:
            keeping.values[task_id] = held
        if (row[3] or len(row) > 4) and (known_before or task_id not in keeping.lineage):
            keeping.ended(row)

    def on_inherit_tasks(self, now: float, source: Address, message: m.InheritTasks) -> None:
        """Rows to be said again after a restart, of workers that are gone."""
        self.functions.update((function[0], function) for function in message.functions)
        for row in message.rows:
            entry = self.entries.get(row[0] + FIRST_RETURN)
            pending = type(entry) is tuple or (type(entry) is ObjectEntry and entry.row is not None)
            if not pending and row[0] not in self.several:
                self.several[row[0]] = (row, 0)
                self.unfinished += 1
                self.keeping.need(row)

    def on_objects(self, now: float, source: Address, message: m.Objects) -> None:
        """Values asked for, and places told."""
        for identifier, status, value, contained in message.rows:
            self.fetching.discard(identifier)
            if type(value) is tuple:
                self.pins.told(identifier, value)
                self.written.pop(identifier, None)
            entry = self.entry(identifier)
            if entry is None:
                if type(value) is tuple:
                    self.pins.let_go(identifier)
                continue
            entry.status = status
            entry.data = value
            self.failures += status != OK
            if contained and identifier not in self.keeping.containing:
                self.keeping.contain(identifier, contained)
            if identifier in self.watchers:
                self._notify(identifier, entry)

    def _notify(self, identifier: bytes, entry: ObjectEntry) -> None:
        if identifier not in self.watchers:
            return
        if entry.data is None and entry.status == OK:
            self.want((identifier,))
            return
        for watcher in self.watchers.pop(identifier):
            watcher(identifier)

    def on_recall_pins(self, now: float, source: Address, message: m.RecallPins) -> None:
        """The store is short of room: what nothing looks at is unpinned, and fetched again when it is wanted."""
        waited_for = set[bytes]().union(*self.gets.values())
        for identifier in message.object_ids:
            if self.pins.viewed(identifier) or identifier in waited_for:
                continue
            entry = self.entry(identifier)
            if entry is not None and type(entry.data) is tuple:
                entry.data = None
            self.pins.release(identifier)

    def on_answer(self, now: float, source: Address, message: m.Answer) -> None:
        """The answer to a question."""
        if self.asked.pop(message.token, None) is not None and not self.calls.heard(message.token):
            self.answers[message.token] = message

    def on_put_committed(self, now: float, source: Address, message: m.PutCommitted) -> None:
        """Durable values are committed, or could not be."""
        for identifier in message.object_ids:
            self.kept[identifier] = message.error

    def on_welcome(self, now: float, source: Address, message: m.Welcome) -> None:
        """Registered."""
        self.job = message.job
        self.node = message.node
        self.welcomed = True

    def on_refused(self, now: float, source: Address, message: m.Refused) -> None:
        """Something this process said does not fit."""
        if self.leaving and message.kind == "JobEndedError":
            self.on_farewell(now, source, m.Farewell(""))  # The daemon before this one ended the job, and died before it could say so.
            return
        self.refused = message
        self.counts["refused_by_scheduler"] += 1

    def on_farewell(self, now: float, source: Address, message: m.Farewell) -> None:
        """The job has ended."""
        self.farewell = message.reason
        self.leaving = False

    def on_notice(self, now: float, source: Address, message: m.Notice | m.LogLines) -> None:
        """Something for people; the shell shows it."""
        self.notices.append(message)

    def on_output_written(self, now: float, source: Address, message: m.OutputWritten) -> None:
        """What has an outcome here, or will soon, wrote something."""
        self.printed = True

    # -- after a restart of the daemon --

    def connect(self, daemon: bytes) -> None:
        """The incarnation of the daemon that everything is said to from now on."""
        self.scheduler = LOCAL_SCHEDULER + daemon
        self.store = OBJECT_STORE + daemon

    def rejoin(self, register: m.Register, running: tuple[m.Message, ...] = (), unread: tuple[Row, ...] = ()) -> None:
        """Say again all that this process holds, in place of whatever was waiting to be sent.

        A worker adds what it runs, and the places that came with tasks it has not begun.
        """
        self._controls = []
        self.keeping.settle()
        self.outbox.clear()
        self.welcomed = False
        self.handing.start_over()
        self.say(register)
        for kind, item in rejoin.holdings(self):
            self.outbox.add(kind, item)
        for message in running:
            self.say(message)
        grants, pinned = self.room.rows(), (*self.pins.rows(), *unread)
        if grants:
            self.tell_store(m.GrantsHeld(grants))
        if pinned:
            self.tell_store(m.Pinned(pinned))
        self.say(m.Ready())
        self.room.ask_again()
        for message in rejoin.requests(self):
            self.say(message)

    # -- the rest of the contract --

    def tick(self, now: float) -> None:
        """Nothing here depends on time."""

    def next_deadline(self) -> float | None:
        """Never."""
        return None

    def take_effects(self, now: float) -> list[Effect]:
        """Everything waiting to be sent, as one batch a kind."""
        if self.submitted:
            self.take_up()
        if self.dropped or self.unviewed:
            self.keeping.settle()
        return self.take_said()

    def take_first(self) -> Send | None:
        """The task or call that is alone on its way: the program is about to wait for it, so it may leave ahead of all else."""
        return self.handing.take() or self.calls.take_lone()

    def take_said(self) -> list[Effect]:
        """What was said so far, and nothing of what finalizers asked for.

        A worker sends this, then the ends of its tasks, then the rest: a value that a task returns must be known to contain a ref before
        the task's own ref to it is let go of.
        """
        self.calls.ask()
        effects, self._controls = self._controls, []
        handed = self.handing.take()
        if handed is not None:
            effects.append(handed)
        if self.handing.unsent:
            effects.extend(Send(self.scheduler, message) for message in self.handing.take_unsaid())
        effects += self.outbox.take(self.scheduler, self.store)
        if self.calls.unsent:
            effects.extend(self.calls.take_sends())
        return effects

    def statistics(self) -> Mapping[str, float]:
        """Counters and sizes."""
        return {**self.counts, "entries": len(self.entries), "unfinished": self.unfinished, "pinned": len(self.pins.tellings)}

    def explain(self, subject: bytes) -> Diagnosis | None:
        """What this process knows of an object."""
        entry = self.entry(subject)
        if entry is None:
            return None
        return Diagnosis(subject, "pending" if entry.status < 0 else "ready", f"{entry.refs} refs in this process")

    def check_invariants(self) -> None:
        """Refs are positive, and failures that nobody has read belong to something."""
        for task_id, (_, names) in self.unread.held.items():
            if not names <= self.entries.keys():
                raise InvariantViolation(f"a failure of {task_id.hex()} is kept, which nobody can read any more")
        for identifier, entry in self.all_entries():
            if entry.refs < 0:
                raise InvariantViolation(f"{identifier.hex()} has {entry.refs} refs")

    def _accepted(self) -> dict[type[Any], Handler]:
        """The handler of each message that a client accepts."""
        return {
            m.Results: self.on_results,
            m.DirectAllowed: self.handing.on_direct_allowed,
            m.InheritTasks: self.on_inherit_tasks,
            m.Objects: self.on_objects,
            m.RecallPins: self.on_recall_pins,
            m.RecallGrant: self.room.on_recall_grant,
            m.Granted: self.room.on_granted,
            m.NoSpace: self.room.on_no_space,
            m.Answer: self.on_answer,
            m.PutCommitted: self.on_put_committed,
            m.Returned: self.calls.on_returned,
            m.ActorLocations: self.calls.on_actor_locations,
            m.CallerGone: self.calls.on_caller_gone,
            m.Welcome: self.on_welcome,
            m.Refused: self.on_refused,
            m.Farewell: self.on_farewell,
            m.Notice: self.on_notice,
            m.LogLines: self.on_notice,
            m.OutputWritten: self.on_output_written,
        }
