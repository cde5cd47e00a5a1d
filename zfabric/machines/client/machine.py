"""The client as a machine.

All messages to the local scheduler share one ordered outbox: ``Hold`` goes ahead of ``Release``, ``Put`` ahead of the row that names the
value. Rows are retained until their outcome, values (and rows of values in the arena) until the last ref is dropped; ``rejoin`` repeats
them to a restarted daemon.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from zfabric.config import Config
from zfabric.machines.client import rejoin
from zfabric.machines.client.calls import Calls
from zfabric.machines.client.direct_submission import DirectSubmitter
from zfabric.machines.client.objects import ABSENT, ObjectEntry, ObjectTable, Pins, Place
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.queries import Queries
from zfabric.machines.client.references import PassedReferences, ReceivedReferences, RetainedObjects
from zfabric.machines.client.releases import LastReferences, Releases
from zfabric.machines.client.reservations import Arguments, Reservations
from zfabric.machines.client.shared_results import SharedResults
from zfabric.machines.client.targets import PendingCalls
from zfabric.machines.client.tasks import Tasks
from zfabric.machines.client.unread import UnreadFailures
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.ids import LOCAL_SCHEDULER, OBJECT_STORE, Address
from zfabric.protocol.machine import Handler, Handlers, InvariantViolation
from zfabric.protocol.messages import OK, Row
from zfabric.protocol.messages.rows import DEPENDENCIES

ARGUMENT_GRANTS = 4
"""Room for unreported arguments, in ``grant_bytes``."""


class Client:
    """One process's side. The shell holds one lock around every method call."""

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
        """Whether ``Goodbye`` was sent, without ``Farewell``."""
        self.exiting: set[bytes] = set()
        """Actors here that ended themselves: repeated, so that a restarted scheduler does not restart them."""
        self.refused: m.Refused | None = None
        self.written: dict[bytes, Row] = {}
        """``Put`` rows unacknowledged by the object store (for the arena) or the control store (for durable values)."""
        self.committed: dict[bytes, str] = {}
        """Answered durable values: an error or empty."""
        self.notices: deque[m.Notice | m.LogLines] = deque()
        self.printed = False
        """Whether output was written, to be shown ahead of an outcome."""
        self.counts: Counter[str] = Counter()
        self._controls: list[Effect] = []

        self.outbox = Outbox()
        self.objects = ObjectTable(self.outbox)
        self.direct = DirectSubmitter(self.outbox)
        self.queries = Queries(self.outbox, self.direct)
        self.reservations = Reservations(config, self.queries.token, self.send_to_store)
        self.arguments = Arguments(self.outbox, self.reservations, self.written, ARGUMENT_GRANTS * config.grant_bytes)
        self.pins = Pins(self.objects.entries, partial(self.outbox.add, m.Unpin))
        self.retained = RetainedObjects(self.objects, self.pins)
        self.unread = UnreadFailures(self.objects, self.retained.needed)
        pending = PendingCalls()
        results = SharedResults(self.objects, self.outbox, pending)
        self.references = ReceivedReferences(self.objects, self.outbox, results, self.retained, self.unread)
        self.calls = Calls(
            self.objects,
            self.outbox,
            self.queries,
            pending,
            results,
            self.references,
            self.retained,
            self.unread,
            config.row_bytes,
            self.place_without_pin,
            self.arguments,
        )
        self.passed = PassedReferences(self.objects)
        self.tasks = Tasks(self.objects, self.outbox, self.direct, self.references, self.retained, self.unread, self.calls)
        self.last = LastReferences(self.outbox, results, self.arguments)
        self.releases = Releases(
            self.objects, self.outbox, self.pins, self.retained, self.unread, self.calls, self.tasks, self.arguments, self.last
        )

        # Tables of the parts that the shell uses with each task.
        self.entries = self.objects.entries
        self.submitted = self.tasks.submitted
        self.dropped = self.objects.dropped
        self.unviewed = self.releases.unviewed
        self.handlers = Handlers(self.counts, self._accepted())

    # -- what is to be sent --

    @property
    def unfinished(self) -> int:
        """Tasks and calls without an outcome."""
        return self.tasks.unfinished + len(self.calls.pending)

    @property
    def unsent(self) -> int:
        """Rows in the batch being filled."""
        return len(self.outbox.tail)

    @property
    def has_unsent(self) -> bool:
        """Whether anything is to be sent."""
        return bool(self.submitted or self.outbox or self._controls or self.calls.unsent or self.direct.unsent)

    @property
    def urgent(self) -> bool:
        """Whether anything but releases, and reports of tasks that a worker has, is to be sent."""
        return bool(self.submitted or self._controls) or self.outbox.urgent or self.calls.unsent or self.direct.urgent

    # -- operations of users --

    def put(self, identifier: bytes, value: bytes | Place, contained: tuple[bytes, ...], durable: bool) -> None:
        """Enter a value, inline or in a grant."""
        self.entries[identifier] = value if type(value) is bytes else ObjectEntry(1, OK, value, None)
        if contained:
            self.calls.results.share(contained)
            self.references.contain(identifier, contained)
        if type(value) is tuple or durable:
            self.written[identifier] = (identifier, value, contained, durable)
        self.outbox.add(m.Put, (identifier, value, contained, durable))

    def add_argument(self, identifier: bytes, place: Place) -> None:
        """Add a call's argument, in a grant, without refs inside."""
        self.entries[identifier] = ObjectEntry(1, OK, None, None)
        self.arguments.add(identifier, place)

    def place_without_pin(self, identifier: bytes) -> Place | None:
        """Where processes of this node may copy a value from, if known. It may be gone any moment.

        Values with refs inside have no such place: the scheduler counts their receivers.
        """
        place = self.arguments.places.get(identifier) or self.pins.places.get(identifier)
        if place is None and identifier in self.written:
            place = self.written[identifier][1]
        if type(place) is not tuple or identifier in self.retained.containing:
            return None
        return place if place[0] >= 0 and place[1] <= self.config.copied_bytes else None

    def located(self, identifiers: Iterable[bytes]) -> dict[bytes, Row]:
        """What this process knows of objects, as ``FabricClient.locate`` returns it; the scheduler knows the others."""
        found: dict[bytes, Row] = {}
        for identifier in identifiers:
            entry = self.objects.entry(identifier)
            if entry is None or entry.status == ABSENT:
                continue
            if entry.status == OK and type(entry.data) is not bytes:
                self.arguments.report(identifier)
                continue
            found[identifier] = (len(entry.data) if entry.status == OK and entry.data is not None else None, (), False, entry.status >= OK)
        return found

    def cancel(self, identifiers: tuple[bytes, ...], force: bool, recursive: bool) -> None:
        """Stop tasks and calls; the scheduler stops their children."""
        self.unread.expected(identifiers)
        tasks = tuple(each for each in identifiers if not self.calls.cancel(each, "cancelled"))
        self.tasks.cancel(tasks, force, recursive)
        named = identifiers if recursive else tasks
        if named:
            self.send(m.Cancel(named, force, recursive))

    def pass_on(self, identifiers: Collection[bytes]) -> None:
        """Prepare for others to receive these refs: the scheduler gets their results, and failures count as read."""
        self.calls.results.share(identifiers)
        self.unread.expected(identifiers)
        self.passed.add(identifiers)

    def rest(self) -> None:
        """Once a second: report arguments, return room, drop refs passed on earlier."""
        self.arguments.report_all()
        self.reservations.rest()
        self.passed.rest()

    def send_to_store(self, message: m.Message) -> None:
        """Send a message to the object store."""
        self._controls.append(Send(self.store, message))

    def send(self, message: m.Message) -> None:
        """Send to the local scheduler, behind the outbox."""
        if type(message) is m.Goodbye:
            self.leaving = True
            self.unread.watching = False
        if type(message) is m.ActorExiting:
            self.exiting.add(message.actor_id)
        if type(message) in (m.Goodbye, m.Query):
            self.direct.report_counts()
        self.outbox.add_message(message)

    # -- the machine --

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Handle a message, then send calls that waited for it."""
        self.handlers[type(message)](now, source, message)
        calls = self.calls
        if calls.awaited:
            calls.news_in(message)
        if calls.blocked or calls.news:
            calls.progress()

    def on_objects(self, now: float, source: Address, message: m.Objects) -> None:
        """Store requested values, or their places."""
        objects = self.objects
        for identifier, status, value, contained in message.rows:
            objects.fetching.discard(identifier)
            if type(value) is tuple:
                self.pins.add(identifier, value)
                self.written.pop(identifier, None)
            entry = objects.entry(identifier)
            if entry is None:
                if type(value) is tuple:
                    self.pins.release_if_unused(identifier)
                continue
            if contained and identifier not in self.retained.containing:
                self.references.contain(identifier, contained)
            objects.settle(identifier, entry, status, value)

    def on_cancel(self, now: float, source: Address, message: m.Cancel) -> None:
        """Stop calls whose results others cancelled."""
        for identifier in message.object_ids:
            self.calls.cancel(identifier, "cancelled")

    def on_recall_pins(self, now: float, source: Address, message: m.RecallPins) -> None:
        """Unpin objects that no value looks into."""
        waited_for = set[bytes]().union(*self.objects.gets.values())
        for identifier in message.object_ids:
            if self.pins.viewed(identifier) or identifier in waited_for:
                continue
            entry = self.objects.entry(identifier)
            if entry is not None and type(entry.data) is tuple:
                entry.data = None
            self.pins.release(identifier)

    def on_recall_grant(self, now: float, source: Address, message: m.RecallGrant) -> None:
        """Report arguments, so that they can be spilled; return this grant if idle."""
        self.arguments.report_all()
        self.reservations.on_recall_grant(now, source, message)

    def on_answer(self, now: float, source: Address, message: m.Answer) -> None:
        """Take an answer."""
        if self.queries.answered(message.token) and not self.calls.confirm(message.token):
            self.queries.add_answer(message)

    def on_put_committed(self, now: float, source: Address, message: m.PutCommitted) -> None:
        """Record which durable values were committed."""
        for identifier in message.object_ids:
            self.written.pop(identifier, None)
            self.committed[identifier] = message.error

    def on_welcome(self, now: float, source: Address, message: m.Welcome) -> None:
        """Accept this process's registration."""
        self.job = message.job
        self.node = message.node
        self.welcomed = True

    def on_refused(self, now: float, source: Address, message: m.Refused) -> None:
        """Record a refusal."""
        if self.leaving and message.kind == "JobEndedError":
            self.on_farewell(now, source, m.Farewell(""))  # An earlier daemon ended the job, and died before it could send this.
            return
        self.refused = message
        self.counts["refused_by_scheduler"] += 1

    def on_farewell(self, now: float, source: Address, message: m.Farewell) -> None:
        """Record the end of the job."""
        self.farewell = message.reason
        self.leaving = False

    def on_notice(self, now: float, source: Address, message: m.Notice | m.LogLines) -> None:
        """Store what the shell shows."""
        self.notices.append(message)

    def on_output_written(self, now: float, source: Address, message: m.OutputWritten) -> None:
        """Note output, ahead of a task's outcome."""
        self.printed = True

    # -- after a restart of the daemon --

    def connect(self, daemon: bytes) -> None:
        """Send everything to this incarnation."""
        self.scheduler = LOCAL_SCHEDULER + daemon
        self.store = OBJECT_STORE + daemon
        self.direct.connect(daemon)

    def rejoin(self, register: m.Register, running: tuple[m.Message, ...] = (), unread: tuple[Row, ...] = ()) -> None:
        """Repeat everything held and requested; drop whatever was to be sent.

        A worker adds what it runs, and the places that came with unbegun tasks.
        """
        self.arguments.report_all()
        self._controls = []
        self.releases.settle()
        self.outbox.clear()
        self.welcomed = False
        self.direct.start_over()
        self.send(register)
        for kind, item in rejoin.holdings(self.tasks, self.objects, self.retained, self.calls, self.written):
            self.outbox.add(kind, item)
        for message in running:
            self.send(message)
        grants, pinned = self.reservations.rows(), (*self.pins.rows(), *unread)
        if grants:
            self.send_to_store(m.GrantsHeld(grants))
        if pinned:
            self.send_to_store(m.Pinned(pinned))
        self.send(m.Ready())
        self.reservations.repeat_requests()
        for message in rejoin.requests(self.tasks, self.calls, self.exiting, self.queries.asked.values(), self.leaving):
            self.send(message)
        self.last.repeat()

    # -- the rest of the machine --

    def tick(self, now: float) -> None:
        """Do nothing."""

    def next_deadline(self) -> float | None:
        """None."""
        return None

    def take_effects(self, now: float) -> list[Effect]:
        """Take everything, one batch of each kind in a row."""
        if self.submitted:
            self.tasks.take_up()
        if self.dropped or self.unviewed:
            self.releases.settle()
        return self.take_before_releases()

    def take_first(self) -> Send | None:
        """Take the only task or call: the program is about to wait for it."""
        return self.direct.take() or self.calls.take_lone() or self._take_lone_task()

    def _take_lone_task(self) -> Send | None:
        """Take a task that says where it runs, if only releases go besides: it names nothing that others must receive first."""
        outbox = self.outbox
        if outbox.kind is not m.Submit or self._controls or self.calls.unsent or self.direct.unsent:
            return None
        row = outbox.tail[-1]
        if row[3] or len(row) == 4 or len(row[4]) != 1 or row[4][0][0] != "strategy" or not outbox.ends_with_lone_row:
            return None
        return Send(self.scheduler, m.Submit((outbox.take_last_row(),)))

    def take_before_releases(self) -> list[Effect]:
        """Take messages so far, without releases.

        A worker sends these, then the ends of its tasks, then releases: a returned value may contain a ref that the task then drops.
        """
        self.calls.ask()
        effects, self._controls = self._controls, []
        direct = self.direct
        ready = direct.take()
        if ready is not None:
            effects.append(ready)
        if direct.unsent:
            effects.extend(Send(self.scheduler, message) for message in direct.take_reports())
        effects += self.outbox.take(self.scheduler, self.store)
        if self.calls.unsent:
            effects.extend(self.calls.take_sends())
        return effects

    def statistics(self) -> Mapping[str, float]:
        """Counters and sizes."""
        return {**self.counts, "entries": len(self.entries), "unfinished": self.unfinished, "pinned": len(self.pins.counts)}

    def reference_counts(self) -> dict[bytes, tuple[int, int]]:
        """(refs, pending tasks and calls that take it) by object; a handle is a ref, too."""
        self.releases.settle()
        entries, targets = self.objects.all_entries(), self.calls.targets.values()
        rows = [entry.row for _, entry in entries if entry.row is not None]
        rows += [row for target in targets for row in (*target.sent.values(), *target.unsent())]
        taken = Counter(identifier for row in rows if len(row) > DEPENDENCIES for identifier in row[DEPENDENCIES])
        refs = {identifier: entry.refs for identifier, entry in entries}
        return {each: (refs.get(each, 0), taken[each]) for each in refs.keys() | taken.keys() if refs.get(each) or taken[each]}

    def check_invariants(self) -> None:
        """Check that counts are not negative, and that unread failures have refs."""
        for task_id, (_, names) in self.unread.held.items():
            if not names <= self.entries.keys():
                raise InvariantViolation(f"a failure of {task_id.hex()} is held, which nobody can read any more")
        for identifier, entry in self.objects.all_entries():
            if entry.refs < 0:
                raise InvariantViolation(f"{identifier.hex()} has {entry.refs} refs")

    def _accepted(self) -> dict[type[Any], Handler]:
        return {
            m.Results: self.tasks.on_results,
            m.DirectAllowed: self.direct.on_direct_allowed,
            m.InheritTasks: self.tasks.on_inherit_tasks,
            m.Cancel: self.on_cancel,
            m.Objects: self.on_objects,
            m.Unreferenced: self.last.on_unreferenced,
            m.RecallPins: self.on_recall_pins,
            m.RecallGrant: self.on_recall_grant,
            m.Granted: self.reservations.on_granted,
            m.NoSpace: self.reservations.on_no_space,
            m.Answer: self.on_answer,
            m.PutCommitted: self.on_put_committed,
            m.Returned: self.calls.on_returned,
            m.ActorLocations: self.calls.on_actor_locations,
            m.RepeatCalls: self.calls.on_repeat_calls,
            m.RequestReceipt: self.calls.on_request_receipt,
            m.CallerGone: self.calls.on_caller_gone,
            m.Welcome: self.on_welcome,
            m.Refused: self.on_refused,
            m.Farewell: self.on_farewell,
            m.Notice: self.on_notice,
            m.LogLines: self.on_notice,
            m.OutputWritten: self.on_output_written,
        }
