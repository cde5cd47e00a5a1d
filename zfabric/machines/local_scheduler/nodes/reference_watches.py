"""Watches: who is notified when nothing in the cluster needs an object, neither a process nor a row nor a value around a ref.

The home decides, when ``References.collect`` frees the object; a watch of another home's object is passed to that home, and its answer
back. A watch does not retain its object.

A watch is *undecided* until other nodes have registered with a restarted scheduler, and until a succession has ended. A restarted scheduler
without a record asks all nodes; after a home's death its heir is asked.
"""

from __future__ import annotations

from collections import defaultdict

from zfabric.machines.local_scheduler.barrier import HOMES
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.nodes.unknown_nodes import UnknownNodes
from zfabric.machines.local_scheduler.records import NO_HOME, AnyObject, ReferenceWatch
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.transitions import ObjectUnreferenced
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, Address


class ReferenceWatches:
    """Watches of objects, over ``References.watches``."""

    def __init__(self, tables: Tables, references: References, unknown_nodes: UnknownNodes) -> None:
        self.tables = tables
        self.references = references
        self.unknown_nodes = unknown_nodes
        self.undecided: dict[bytes, None] = {}
        """Objects of which it is unknown who decides."""
        self.to_ask: defaultdict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
        """Objects to ask about, by node and ``former`` as in ``WatchReferences``."""
        self.to_notify: defaultdict[bytes, list[bytes]] = defaultdict(list)
        """Unneeded objects, by watcher."""

    # -- messages --

    def on_watch_references(self, now: float, source: Address, message: m.WatchReferences) -> None:
        """Watch objects for a process or node."""
        watcher = source[1:]
        if watcher not in self.tables.processes or (watcher in self.tables.nodes and self.tables.sender_of(source) is None):
            return  # It is dead, or registers again and repeats this.
        watches = self.references.watches
        for object_id in message.object_ids:
            watch = watches.get(object_id)
            if watch is None:
                watch = watches[object_id] = ReferenceWatch()
            watch.watchers.add(watcher)
            watch.former = message.former or watch.former
            self._decide(object_id, watch)
        self.references.choose()

    def on_unreferenced(self, now: float, source: Address, message: m.Unreferenced) -> None:
        """Accept a node's answer that nothing needs these."""
        for object_id in message.object_ids:
            watch = self.references.watches.get(object_id)
            if watch is None or source[1:] not in watch.asked:
                continue
            watch.asked.discard(source[1:])
            watch.searched = True
            record = self.tables.find(object_id)
            if record is not None and record.home and not watch.asked and not self._waits(watch, record):
                self._conclude(object_id)
            else:
                self._decide(object_id, watch)

    def on_object_unreferenced(self, transition: ObjectUnreferenced) -> None:
        """End the watch of this home's object."""
        if transition.object_id in self.references.watches:
            self._conclude(transition.object_id)

    # -- what decides --

    def review(self) -> None:
        """Decide undecided watches where possible."""
        undecided, self.undecided = self.undecided, {}
        for object_id in undecided:
            watch = self.references.watches.get(object_id)
            if watch is not None:
                self._decide(object_id, watch)

    def _waits(self, watch: ReferenceWatch, record: AnyObject) -> bool:
        return self.tables.barrier.awaits(HOMES) or record.home == NO_HOME or not self._has_taken_over(watch.former)

    def _has_taken_over(self, former: bytes) -> bool:
        """Whether this node has taken over from a dead one, or need not; it may be notified of the death later."""
        return not former or self.tables.dead.get(former, former not in self.tables.nodes)

    def _decide(self, object_id: bytes, watch: ReferenceWatch) -> None:
        record = self.tables.find(object_id)
        if self.tables.barrier.awaits(HOMES) or not self._has_taken_over(watch.former):
            self.undecided[object_id] = None
            return
        if watch.former:  # The survivors have reported their needs.
            watch.former, watch.searched = b"", True
        if record is not None and record.home:
            self._ask_home(record, watch)
        elif record is not None:
            self.references.collect_later(record)  # It may have been freed, and retained for rows that name it.
        elif watch.asked:
            pass
        elif not watch.searched and self.tables.nodes and not watch.watchers <= self.tables.nodes.keys():
            watch.searched = True
            for node in self.tables.nodes:
                self._ask(object_id, watch, node)
        else:
            self._conclude(object_id)

    def _ask_home(self, record: AnyObject, watch: ReferenceWatch) -> None:
        home = record.home
        if home in self.tables.dead:
            heir = self.tables.job_home(record.object_id)
            if heir and heir in self.tables.nodes:
                self._ask(record.object_id, watch, heir, home)
            elif record.is_needed or not self._has_taken_over(home):
                self.undecided[record.object_id] = None
            else:
                self._conclude(record.object_id)
        elif home == NO_HOME:
            self.undecided[record.object_id] = None
        else:
            self._ask(record.object_id, watch, home)

    def _ask(self, object_id: bytes, watch: ReferenceWatch, node: bytes, former: bytes = b"") -> None:
        if node not in watch.asked:
            watch.asked.add(node)
            self.to_ask[node, former].append(object_id)

    def _conclude(self, object_id: bytes) -> None:
        watch = self.references.watches.pop(object_id)
        for watcher in watch.watchers:
            self.to_notify[watcher].append(object_id)
        self.references.choose()

    # -- the end of a turn --

    def end_of_turn(self) -> None:
        """Ask behind this turn's holds, so that homes know the objects. Notify watchers."""
        for (node, former), object_ids in self.to_ask.items():
            for batch in batches(object_ids):
                self.unknown_nodes.send(node, m.WatchReferences(batch, former))
        self.to_ask.clear()
        for watcher, object_ids in sorted(self.to_notify.items()):
            process = self.tables.processes.get(watcher)
            for batch in batches(object_ids if process is not None else ()):
                message = m.Unreferenced(batch)
                if watcher in self.tables.nodes:
                    self.tables.send_to_node(watcher, message)
                elif process is not None:
                    self.tables.send_to_client(process, message)
        self.to_notify.clear()

    # -- nodes and jobs --

    def repeat(self, node: bytes) -> None:
        """Ask again after a restart of either daemon."""
        asked = [object_id for object_id, watch in self.references.watches.items() if node in watch.asked]
        for batch in batches(asked):
            self.tables.send_to_node(node, m.WatchReferences(batch))

    def node_died(self, node: bytes) -> None:
        """Ask the heir, or wait for this node's own succession."""
        for object_id, watch in list(self.references.watches.items()):
            if node not in watch.asked:
                continue
            watch.asked.discard(node)
            heir = self.tables.job_home(object_id)
            if heir and heir in self.tables.nodes:
                watch.asked.discard(heir)  # An earlier answer does not count.
                self._ask(object_id, watch, heir, node)
            elif heir == b"":
                watch.former = node
                self._decide(object_id, watch)
            elif not watch.asked:
                self._conclude(object_id)

    def job_ended(self, job: bytes) -> None:
        """End the watches of an ended job."""
        for object_id in [each for each in self.references.watches if each[:JOB_BYTES] == job]:
            self._conclude(object_id)
