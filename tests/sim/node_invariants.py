"""What nodes of a world have of each other's: one home per task, one hop from there, and nothing for the dead.

- At any time a task is at home on one node. A node that has a task from another one has it from the task's home.
- In the calm, no node holds, pins, lends or retains anything for a dead node or process, and each pin has something that pins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.sim.node import Node, Overview, SimDaemon
from zfabric.machines.local_scheduler.actors.directory import DETACHED
from zfabric.machines.local_scheduler.object_places import Elsewhere
from zfabric.machines.local_scheduler.records import DONE, NO_HOME
from zfabric.machines.local_scheduler.references import named_by
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.ids import short


class NodeInvariants:
    """Compares the nodes of one world with each other."""

    def __init__(self, world: Overview) -> None:
        self.world = world

    # -- at any time --

    def after_turn(self, daemon: SimDaemon, members: set[bytes]) -> None:
        """Check where this node's tasks are at home. ``members`` are the nodes not declared dead."""
        node, tasks = daemon.node, daemon.scheduler.tables.tasks
        if node.identifier not in members:
            return
        others = {
            each.identifier: each.daemon.scheduler.tables.tasks
            for each in self.world.living
            if each is not node and each.up and each.identifier in members
        }
        where = self._name(node.identifier)
        for identifier, theirs in others.items():
            for task_id in tasks.keys() & theirs.keys():
                here, there = tasks[task_id].function, theirs[task_id].function
                if not here.delegated and not there.delegated:
                    self.world.fail(f"{short(task_id)} is at home on {where} and on {self._name(identifier)}")
                if here.delegated and there.delegated and tasks[task_id].submitter == identifier:
                    self.world.fail(f"{where} has {short(task_id)} from {self._name(identifier)}, which is not its home")

    # -- at rest --

    def calm(self) -> None:
        """Fail if a node has anything for the dead, or needless pins."""
        for node in self.world.living:
            for each in (*self.for_the_dead(node), *needless_pins(node)):
                self.world.fail(each)

    def for_the_dead(self, node: Node) -> list[str]:
        """List what a node has for nodes and processes that it knows to be dead."""
        where = self._name(node.identifier)
        return [f"{where} has {what} for {self.world.who(whom)}, which is dead" for what, whom in _for_the_dead(node)]

    def _name(self, node: bytes) -> str:
        (number,) = (each.number for each in self.world.nodes if each.identifier == node)
        return f"node {number}"


def _for_the_dead(node: Node) -> Iterator[tuple[str, bytes]]:
    """(what, whom) a node has for processes and nodes no longer in its tables."""
    tables = node.daemon.scheduler.tables
    nodes = {*tables.nodes, node.identifier}
    processes = {*tables.processes, node.identifier, DETACHED}
    for record in tables.values():
        name = short(record.object_id)
        yield from ((f"a hold of {name}", each) for each in record.all_holders if each not in processes)
        yield from ((f"a request for {name}", each) for each in record.fetchers or () if each not in processes)
        if record.home and record.home not in nodes | {NO_HOME}:
            yield f"a record of {name}", record.home
        if isinstance(record.value, Elsewhere) and record.value.place not in nodes:
            yield f"the place of {name}", record.value.place
    yield from _relations(node, tables, nodes)
    for object_id, askers in tables.store.waiting.items():
        yield from ((f"a question for the place of {short(object_id)}", each) for each in askers if each not in processes)
    store = node.daemon.store._tables
    able = {node.daemon.incarnation, *processes}
    for entry in store.entries.values():
        yield from ((f"a pin on {short(entry.object_id)}", each) for each in (*entry.pins, *entry.asked) if each not in able)
    granted = [*(each.holder for each in store.grants.values()), *(each.holder for each in store.files.values())]
    yield from (("a grant", each) for each in granted if each not in able)


def _relations(node: Node, tables: Tables, nodes: set[bytes]) -> Iterator[tuple[str, bytes]]:
    """The same for what nodes have with each other besides objects."""
    scheduler = node.daemon.scheduler
    callers = scheduler.remote_callers
    found = [(f"task {short(each.id)}", each.submitter) for each in tables.tasks.values() if each.function.delegated]
    found += [(f"the actor {short(each.id)}", each.home) for each in tables.guests.values()]
    found += [(f"the stream {short(name)}", each.home) for name, each in scheduler.streams.relayed_calls.items()]
    found += [(f"values of the stream {short(name)}", each.home) for name, each in scheduler.remote_streams.last.items()]
    found += [("rows that are retained", each) for each in scheduler.references._retained_rows]
    found += [("rows that were entrusted", each) for each, rows in tables.entrusted.items() if rows]
    found += [(f"the job {short(each.id)}", each.home) for each in tables.jobs.values() if each.home and not each.ended]
    for channel in (tables.ledger.holds, tables.ledger.rows):
        found += [("a message that is not acknowledged", each) for each in channel._open.values()]
        found += [("a message that waits for others", each) for _, each, _ in channel._waiting]
    found += [("an end that waits for holds", each) for each, _ in tables.ledger._releasing]
    found += [("callers", each) for each, known in callers._callers.items() if known]
    yield from (each for each in found if each[1] not in nodes)
    yield from (("a takeover", each) for each in scheduler.failover._takeovers)


def needless_pins(node: Node) -> list[str]:
    """List objects with more pins than rows, values and reports that name them."""
    scheduler = node.daemon.scheduler
    tables = scheduler.tables
    named: Counter[bytes] = Counter()
    for task in tables.tasks.values():
        if task.state != DONE:
            named.update(named_by(task))
    for record in tables.values():
        named.update(record.contained)
    for peer in tables.nodes.values():
        for _, pins, *_ in peer.ends.retained:
            named.update(pins)
    for _, names in scheduler.remote_callers._pinned.values():
        named.update(names)
    for last in scheduler.remote_streams.last.values():
        named.update(each for row in last.rows for each in row[4])
    for stream in tables.streams.values():
        named.update(stream.value(index) for index in stream.unclaimed)
    for actor in scheduler.actors.records.values():
        named.update(actor.arguments)
    for names in scheduler.actors.logs.references_of():
        named.update(names)
    for life in scheduler.guest_logs._lives.values():
        named.update(life.read)
        for _, pins, *_ in life.unrecorded.retained:
            named.update(pins)
    counted = ((record, named[record.object_id]) for record in tables.values() if getattr(record, "outputs", None) is None)
    return [f"{short(each.object_id)} has {each.pins} pins, and {count} things name it" for each, count in counted if each.pins > count]
