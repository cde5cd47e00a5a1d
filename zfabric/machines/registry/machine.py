"""The registry decides, alone, which nodes a cluster has, and that a node is dead (decision 0005).

A living node has a row in the head's control store ("member"), durable before the node is notified; its deletion is durable before anybody
is notified of the death. So a restarted registry revokes nothing. Leases begin anew when the registry starts or was held up: one that
stalls declares nobody dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from zfabric.config import Config, probe_seconds
from zfabric.machines.common.tables import pack_row, unpack_row
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Log, Send
from zfabric.protocol.ids import JOINER, MEMBER, Address
from zfabric.protocol.machine import Handler, Handlers, InvariantViolation
from zfabric.protocol.messages import PROTOCOL_VERSION, Row

TABLE = "member"
NUMBERS_KEY = b"\xff"
"""The row of the last number, and of the last nodes with one; no node id is so short."""
LOOK_EVERY = 0.5
"""Seconds between checks of the leases."""
STALL_SECONDS = 1.0
"""Seconds of a pause after which leases begin anew: renewals may be unread."""
NODES_MAX = 4096
RETRY_EVERY = 1.0
PROBE_PATIENCE = 2.0
"""How long a probe of pairs may take, in units of the transfer agents' time."""


class _Node:
    """A node with a row in the control store, or soon."""

    __slots__ = ("condemned", "deadline", "durable", "ending", "retry_at", "row")

    def __init__(self, row: Row, durable: bool, deadline: float) -> None:
        self.row = row
        """The row of ``NodeTable``."""
        self.durable = durable
        self.deadline = deadline
        self.condemned = ""
        """Why the lease is not renewed."""
        self.ending = ""
        """Why the row is being deleted."""
        self.retry_at: float | None = None
        """When the deletion is retried."""


class _Request(NamedTuple):
    then: Callable[[float, Any, Any], None]
    about: Any


class Registry:
    """One per cluster. ``node`` is the head, ``versions`` what each node must have; ``daemons`` counts the head's earlier daemons."""

    def __init__(self, address: Address, node: bytes, config: Config, control: Address, versions: m.Rows, daemons: int) -> None:
        self.address = address
        self._node = node
        self._config = config
        self._control = control
        self._versions: dict[str, str] = dict(versions)
        self._nodes: dict[bytes, _Node] = {}
        self._last_number = 0
        self._restarted = daemons > 0
        self._version = daemons << 32
        """The last table's version, above all earlier registries'."""
        self._effects: list[Effect] = []
        self._requests: dict[int, _Request] = {}
        self._next_token = 1
        self._admitted: dict[bytes, None] = {}
        """The last nodes with a number. Without a row they are dead, and no death is written."""
        self._early: dict[bytes, tuple[Address, m.Join]] = {}
        """Nodes that asked before the rows were read."""
        self._read = False
        self._look_at = 0.0
        self._changed = False
        self._closing = ""
        """Why the cluster ends, if it does."""
        self._probes = Probes(config.pair_patience, daemons << 32)
        self._welcomed: list[Address] = []
        """Names of nodes that joined since the last table: they receive it there, without a way to the head yet."""
        self._counts = dict.fromkeys(("joined", "died", "left", "expelled", "refused", "stalls", "unreachable"), 0)
        self.handlers = Handlers(self._counts, self._accepted())
        self._ask(m.Scan, TABLE, b"", b"", NODES_MAX + 1, then=self._rows_found)

    # -- the contract --

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Process one message."""
        self._notice_stall(now)
        self.handlers[type(message)](now, source, message)

    def tick(self, now: float) -> None:
        """End expired leases."""
        self._notice_stall(now)
        for identifier, node in list(self._nodes.items()):
            if node.ending:
                if node.retry_at is not None and now >= node.retry_at:
                    self._delete(identifier, node)
            elif node.durable and now >= node.deadline and identifier != self._node:
                self._end(identifier, node, node.condemned or f"it did not renew its lease for {self._config.node_lease} s")
        self._end_probe(now)

    def next_deadline(self) -> float | None:
        """When leases are checked or a probe ends; None for a lone head."""
        until = self._probes.until
        return None if len(self._nodes) < 2 else self._look_at if until is None else min(self._look_at, until)

    def take_effects(self, now: float) -> list[Effect]:
        """Send all nodes a changed table."""
        if self._changed:
            self._changed = False
            self._version += 1
            table = m.NodeTable(self._version, tuple(node.row for node in self._living().values()), self._node)
            self._effects += [Send(MEMBER + identifier, table) for identifier in self._living()]
            self._effects += [Send(source, table) for source in self._welcomed]
            self._welcomed.clear()
        effects, self._effects = self._effects, []
        return effects

    def statistics(self) -> Mapping[str, float]:
        """Counters, and the number of living nodes."""
        return {**self._counts, "nodes": len(self._living())}

    def check_invariants(self) -> None:
        """Raise InvariantViolation if a number is given twice, or was never given."""
        numbers = [node.row[1] for node in self._nodes.values()]
        if len(set(numbers)) < len(numbers) or max(numbers, default=0) > self._last_number:
            raise InvariantViolation("two nodes have one number, or one has a number that was not given out")

    # -- nodes that join --

    def on_join(self, now: float, source: Address, message: m.Join) -> None:
        """Let a node join, or repeat the answer."""
        if not source[1:].startswith(JOINER) and self._is_other(source, message.node):
            return
        if not self._read:
            self._early[message.node] = (source, message)
            return
        known = self._nodes.get(message.node)
        refusal = self._refusal(message, known)
        if refusal is not None:
            self._counts["refused"] += 1
            self._effects.append(Send(source, refusal))
        elif known is None:
            self._last_number += 1
            node = self._nodes[message.node] = _Node(self._row(message, self._last_number), False, now + self._config.node_lease)
            self._admit(message.node)
            numbers = (TABLE, NUMBERS_KEY, pack_row((self._last_number, tuple(self._admitted))))
            puts = ((TABLE, message.node, pack_row(node.row)), numbers)
            self._ask(m.Write, puts, (), then=self._row_written, about=(source, message.node))
        elif known.durable and not known.ending:
            if source[1:] == message.node:  # Else nothing proves that it is this node.
                known.row = self._row(message, known.row[1])
            self._welcome(source, message.node, now)

    def _refusal(self, message: m.Join, known: _Node | None) -> m.Message | None:
        if message.protocol != PROTOCOL_VERSION:
            return m.Refused("VersionMismatchError", f"this cluster has protocol {PROTOCOL_VERSION}, the node {message.protocol}")
        for what, version in message.versions:
            if self._versions.get(what, version) != version:
                return m.Refused("VersionMismatchError", f"this cluster has {what} {self._versions[what]}, the node {version}")
        if known is None and message.number:
            return m.Expelled("its lease ran out while its daemon was restarted; it is dead for the cluster")
        if known is None and message.node in self._admitted and message.node != self._node:
            # A late request, or a lost answer. (The head may have had a row of an earlier one.)
            return m.Expelled("its lease ran out before it had the answer that it has joined; it is dead for the cluster")
        if known is None and self._closing and message.node != self._node:
            return self._late()
        if known is None and len(self._nodes) >= NODES_MAX:
            return m.Refused("FabricError", f"a cluster has at most {NODES_MAX} nodes")
        if known is not None and known.row[5] != message.key:
            return m.Refused("FabricError", "another node of this cluster has this id")
        return None

    def _late(self) -> m.Refused:
        return m.Refused("ConnectionLostError", f"the cluster ends: {self._closing}")

    def _admit(self, identifier: bytes) -> None:
        self._admitted[identifier] = None
        if len(self._admitted) > NODES_MAX + len(self._nodes):
            del self._admitted[next(each for each in self._admitted if each not in self._nodes)]

    def _row(self, message: m.Join, number: int) -> Row:
        others = {node.row[2] for identifier, node in self._nodes.items() if identifier != message.node}
        name = message.name if message.name not in others else f"{message.name}-{number}"
        where = (message.address, message.transfer, message.key)
        return (message.node, number, name, *where, message.resources, message.labels, message.pid)

    def _row_written(self, now: float, about: tuple[Address, bytes], answer: m.Written) -> None:
        """A new node's row is durable, or the disk is full."""
        source, identifier = about
        if answer.ok and (not self._closing or identifier == self._node):
            self._nodes[identifier].durable = True
            self._counts["joined"] += 1
            self._welcome(source, identifier, now)
        else:  # Of an ending cluster the next head finds the row, as of all nodes whose end is not durable.
            del self._nodes[identifier], self._admitted[identifier]
            full = m.Refused("OutOfDiskError", f"no node can join: {answer.text}")
            self._effects.append(Send(source, self._late() if answer.ok else full))

    def _welcome(self, source: Address, identifier: bytes, now: float) -> None:
        node = self._nodes[identifier]
        node.deadline = now + self._config.node_lease
        self._effects.append(Send(source, m.Joined(self._node, node.row[1], self._config.node_lease)))
        self._changed = True
        if source[1:] != identifier:
            self._welcomed.append(source)

    def _rows_found(self, now: float, about: None, answer: m.Found) -> None:
        """Give the earlier registry's nodes full leases. An earlier head's have ended with it."""
        self._read = True
        for key, value in answer.rows:
            if key == NUMBERS_KEY:
                facts = unpack_row(value)
                self._last_number, admitted = facts if isinstance(facts, tuple) else (facts, ())  # Earlier versions wrote the number alone.
                self._admitted = dict.fromkeys(admitted)
            else:
                self._nodes[key] = _Node(unpack_row(value), True, now + self._config.node_lease)
        if not self._restarted:
            for identifier, node in self._nodes.items():
                self._end(identifier, node, "its head has ended")
        self._look_at = now + LOOK_EVERY
        early, self._early = self._early, {}
        for source, message in early.values():
            self.on_join(now, source, message)

    # -- leases --

    def on_renew_lease(self, now: float, source: Address, message: m.RenewLease) -> None:
        """Renew a lease without a commit; expel a dead node."""
        if self._is_other(source, message.node):
            return
        node = self._nodes.get(message.node)
        if node is not None and node.condemned:
            self._effects.append(Send(source, m.Expelled(node.condemned)))
        elif node is not None and node.durable and not node.ending:
            node.deadline = now + self._config.node_lease
            self._effects.append(Send(source, m.LeaseRenewed(message.number)))
        elif self._read and node is None:
            self._counts["expelled"] += 1
            self._effects.append(Send(source, m.Expelled("its lease ran out, and it was declared dead")))

    def on_leave(self, now: float, source: Address, message: m.Leave) -> None:
        """A node ends in order."""
        if self._is_other(source, message.node):
            return
        node = self._nodes.get(message.node)
        if node is not None and node.durable and not node.ending and message.node != self._node:
            self._end(message.node, node, message.reason or "it was stopped")

    def end_cluster(self, reason: str) -> None:
        """Declare all others dead: they cannot go on without the head."""
        self._closing = reason or "the head was stopped"
        for identifier, node in list(self._nodes.items()):
            if identifier != self._node and node.durable and not node.ending:
                self._end(identifier, node, self._closing)

    # -- pairs of nodes --

    def on_complain(self, now: float, source: Address, message: m.Complain) -> None:
        """Have all pairs probed, to find out whose fault it is."""
        living = self._acting()
        if source[1:] in living and not living.keys().isdisjoint(message.nodes) and self._probes.begin(now):
            others = ", ".join(living[node].row[2] for node in message.nodes if node in living)
            self._effects.append(Log("warning", f"node {living[source[1:]].row[2]} cannot reach {others}: all pairs of nodes are probed"))
            self._effects += [Send(MEMBER + identifier, m.ProbePairs(self._probes.number)) for identifier in living]

    def on_pairs_probed(self, now: float, source: Address, message: m.PairsProbed) -> None:
        """A node has probed its pairs."""
        self._probes.answer(message.number, source[1:], message.nodes)
        self._end_probe(now)

    def _end_probe(self, now: float) -> None:
        """Once all have answered, end the node that most others cannot reach."""
        living = self._acting()
        worst = self._probes.end(now, {identifier: node.row[1] for identifier, node in living.items()})
        if worst is None:
            return
        node = living[worst.node]
        text = f"{worst.pairs} of {worst.living - 1} other nodes cannot reach it, or it them"
        if worst.node == self._node:
            self._effects.append(Log("error", f"node {node.row[2]}, the head, is badly connected: {text}; nobody is ended"))
        else:
            self._counts["unreachable"] += 1
            self._condemn(worst.node, node, f"{text}, and no node is worse connected")

    def _condemn(self, identifier: bytes, node: _Node, reason: str) -> None:
        """Have a node end. Until its lease has expired it may lack the notice, and act."""
        node.condemned = reason
        self._effects.append(Log("warning", f"node {node.row[2]} ({identifier.hex()}) is to end: {reason}"))
        self._effects.append(Send(MEMBER + identifier, m.Expelled(reason)))

    def _acting(self) -> dict[bytes, _Node]:
        acting = self._living().items()
        return {identifier: node for identifier, node in acting if not node.ending and not node.condemned}

    def _notice_stall(self, now: float) -> None:
        if self._look_at and now > self._look_at + STALL_SECONDS and len(self._nodes) > 1:
            self._counts["stalls"] += 1
            self._probes.give_up()
            for node in self._nodes.values():  # One that is to end may have missed that.
                node.deadline = now + self._config.node_lease
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY

    def _end(self, identifier: bytes, node: _Node, reason: str) -> None:
        """Delete a node's row; once durable, the node is dead."""
        node.ending = reason
        self._effects.append(Log("warning", f"node {node.row[2]} ({identifier.hex()}) is dead: {reason}"))
        self._delete(identifier, node)

    def _delete(self, identifier: bytes, node: _Node) -> None:
        node.retry_at = None
        self._ask(m.Write, (), ((TABLE, identifier),), then=self._row_deleted, about=identifier)

    def _row_deleted(self, now: float, identifier: bytes, answer: m.Written) -> None:
        node = self._nodes[identifier]
        if not answer.ok:
            node.retry_at = now + RETRY_EVERY
            return
        self._counts["died"] += 1
        self._effects.append(Send(MEMBER + identifier, m.Expelled(node.ending)))
        del self._nodes[identifier]
        self._changed = True

    @property
    def ending(self) -> bool:
        """Whether the cluster ends and a death is not durable yet."""
        return bool(self._closing) and len(self._nodes) > 1

    # -- small things --

    def _is_other(self, source: Address, node: bytes) -> bool:
        other = source[1:] != node
        self._counts["refused"] += other
        return other

    def _living(self) -> dict[bytes, _Node]:
        """Nodes with a durable row, also while it is deleted: that may fail."""
        return {identifier: node for identifier, node in self._nodes.items() if node.durable}

    def _ask(self, message: Callable[..., m.Message], *fields: Any, then: Callable[[float, Any, Any], None], about: Any = None) -> None:
        token = self._next_token
        self._next_token += 1
        self._requests[token] = _Request(then, about)
        self._effects.append(Send(self._control, message(token, *fields)))

    def on_answer(self, now: float, source: Address, message: m.Written | m.Found) -> None:
        """Pass on the control store's answer."""
        request = self._requests.pop(message.token, None)
        if request is not None:
            request.then(now, request.about, message)

    def _accepted(self) -> dict[type[Any], Handler]:
        return {
            m.Join: self.on_join,
            m.RenewLease: self.on_renew_lease,
            m.Leave: self.on_leave,
            m.Complain: self.on_complain,
            m.PairsProbed: self.on_pairs_probed,
            m.Written: self.on_answer,
            m.Found: self.on_answer,
        }


class Worst(NamedTuple):
    """The node to end; ``pairs`` others are out of reach, one way or the other."""

    node: bytes
    pairs: int
    living: int


class Probes:
    """The probe under way, if any, of pairs of nodes that cannot reach each other. ``patience`` is ``pair_patience``.

    A complaint may be either node's fault, so each reports which ones it does not reach. The node with most such pairs goes; of several,
    the youngest, whose end costs least. Nobody ends if it is the head, since all would, or if the pairs have recovered. The node is dead
    when its lease has expired: until then it may act.
    """

    def __init__(self, patience: float, first_number: int) -> None:
        self._patience = patience
        self.number = first_number
        self.until: float | None = None
        """When it ends without all answers; None without a probe."""
        self._answers: dict[bytes, frozenset[bytes]] = {}

    def begin(self, now: float) -> bool:
        """Probe all pairs, unless under way."""
        if self.until is not None:
            return False
        self.number += 1
        self.until = now + PROBE_PATIENCE * probe_seconds(self._patience)
        self._answers.clear()
        return True

    def answer(self, number: int, node: bytes, unreached: Iterable[bytes]) -> None:
        """Record whom a node does not reach."""
        if self.until is not None and number == self.number:
            self._answers[node] = frozenset(unreached)

    def give_up(self) -> None:
        """Drop the probe: answers may be unread. Who complained complains again."""
        self.until = None

    def end(self, now: float, numbers: Mapping[bytes, int]) -> Worst | None:
        """End a late or complete probe of the living nodes (with ``numbers``); return the node to end."""
        if self.until is None or (now < self.until and not numbers.keys() <= self._answers.keys()):
            return None
        self.until = None
        pairs = {frozenset((one, other)) for one, unreached in self._answers.items() for other in unreached if one != other}
        count = Counter(node for pair in pairs if pair <= numbers.keys() for node in pair)
        if not count:
            return None
        worst = max(count, key=lambda node: (count[node], numbers[node]))
        return Worst(worst, count[worst], len(numbers))
