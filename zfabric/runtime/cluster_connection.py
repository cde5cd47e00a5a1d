"""A daemon's connections with other nodes, and how it joins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from zfabric.adapters.curve import Context
from zfabric.adapters.node_transport import NodeTransport
from zfabric.machines.common.resources import own_resources
from zfabric.machines.common.tables import pack_row
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_NODES
from zfabric.protocol.effects import ConnectNodes
from zfabric.protocol.ids import HEAD, LOCAL_SCHEDULER, MEMBER
from zfabric.protocol.messages import Envelope
from zfabric.runtime import job_files
from zfabric.runtime.cluster import bound_address, head_address, join_message, own_address, parse_address
from zfabric.runtime.keys import read_keys, read_server_pair
from zfabric.runtime.log_files import BYTES, FILES, answer
from zfabric.runtime.session import ClusterSettings, JoinedNode, Session
from zfabric.shell.node import ClusterPart, NodeMachines, SendAhead

_ADMITTED = {
    "node": frozenset(kind for kinds in FROM_NODES.values() for kind in kinds),
    "joiner": frozenset({m.Join}),
    "head": frozenset({m.Joined, m.Refused, m.NodeTable, m.Expelled}),
}
"""Messages by their sender: a node of the table, a joining node, the head that answers it."""

_OF_LEASES = (m.Join, m.RenewLease)
"""What a silent node still sends."""


class ClusterConnection:
    """One daemon's connections with other nodes. ``part`` is for its machines."""

    def __init__(
        self, context: Context, session: Session, settings: ClusterSettings, daemon: bytes, daemons: int, arena_bytes: int
    ) -> None:
        self._session = session
        self._settings = settings
        self._node = bytes.fromhex(session.describe()["node"])
        before = session.membership()
        self._keys_of = _written_at(session.cluster_key)
        cluster = read_keys(session.cluster_key)
        self._head = "" if settings.head else head_address(settings)
        pair = read_server_pair(session.pair_of(settings))
        port = settings.port if before is None or settings.advertised else parse_address(before.address)[1]
        self.transport = NodeTransport(
            context,
            self._node,
            daemon,
            daemons,
            pair,
            bound_address(settings, port),
            lambda sender, kind: kind in _ADMITTED[sender],
            (cluster.node.public,) if settings.head else (),
        )
        self.address = own_address(settings, parse_address(self.transport.address)[1], settings.advertised)
        own = own_resources(parse_address(self.address)[0], settings.head, arena_bytes)
        self.resources: dict[str, float] = {**own, **session.describe()["resources"]}
        number = before.number if before is not None else 0
        self.part = ClusterPart(
            join_message(session, settings, pair.public, number, self.address, self.resources),
            settings.head,
            before.node_table() if before is not None else None,
            session.lease_until(),
        )
        self.joined = False
        self._unreachable: tuple[bytes, ...] = ()
        self._silent = False
        self._held: dict[bytes, list[Envelope]] = {}
        """Messages held until the silence ends, by receiver."""
        if self.part.table is None and not settings.head:
            self.transport.join(self._head, cluster.server, cluster.node)

    def look_at_keys(self) -> None:
        """On the head, reload a changed key file (``zfabric keys revoke``)."""
        if not self._settings.head:
            return
        try:
            written = _written_at(self._session.cluster_key)
        except FileNotFoundError:  # Somebody has removed it; the keys in use remain valid.
            return
        if written != self._keys_of:
            self._keys_of = written
            self.transport.admit_joiners((read_keys(self._session.cluster_key).node.public,))

    def receive(self, now: float, core: NodeMachines, measure: Callable[[], None], send_ahead: SendAhead) -> None:
        """Pass on what other nodes sent. ``measure`` precedes questions about this node's status."""
        for sender, envelopes in self.transport.receive(now):
            for to, role, message in envelopes:
                if type(message) is m.Query:
                    if message.what in (FILES, BYTES):
                        answered = answer(self._session.logs, message)
                        self.transport.send_envelopes(sender, [(LOCAL_SCHEDULER, LOCAL_SCHEDULER, answered)], now)
                        continue
                    if message.what in job_files.QUESTIONS:
                        answered = job_files.answer(self._session.directory, message)
                        self.transport.send_envelopes(sender, [(LOCAL_SCHEDULER, LOCAL_SCHEDULER, answered)], now)
                        continue
                    if message.what in ("status", "statuses"):
                        measure()
                core.receive_from_node(now, sender, to, role, message, send_ahead)

    def send(self, now: float, core: NodeMachines) -> None:
        """Send to other nodes; while silent, only lease requests."""
        for node, envelopes in core.take_outgoing_to_nodes().items():
            if self._silent:
                self._held.setdefault(node, []).extend(each for each in envelopes if type(each[2]) not in _OF_LEASES)
                envelopes = [each for each in envelopes if type(each[2]) in _OF_LEASES]
            elif node == HEAD:
                envelopes = [each for each in envelopes if type(each[2]) is m.Join]  # The way for others is not known yet.
            if envelopes:
                self.transport.send_envelopes(node, envelopes, now)

    def silence(self, silent: bool, now: float) -> None:
        """Begin silence, or end it and send what was held."""
        self._silent = silent
        if not silent:
            held, self._held = self._held, {}
            for node, envelopes in held.items():
                self.transport.send_envelopes(node, envelopes, now)

    def connect(self, effect: ConnectNodes) -> None:
        """Connect to exactly these nodes, and store them for the next daemon."""
        self.transport.connect(effect.rows)
        number = next((row[1] for row in effect.rows if row[0] == self._node), 0)
        if number:
            self.joined = True
            addresses = tuple(row[3] for row in effect.rows)
            self._session.write_membership(JoinedNode(number, self.address, addresses, pack_row(tuple(effect)).hex()))

    def look_at_pairs(self, now: float, core: NodeMachines) -> None:
        """Report changes of unreachable nodes to the member."""
        unreachable = self.transport.unreachable()
        if unreachable != self._unreachable:
            self._unreachable = unreachable
            core.step(now, MEMBER, m.Unreachable(unreachable))

    def reason(self, reason: str) -> str:
        """Explain to people why the node ends, with its last attempt to join."""
        if self.joined or self.part.join.number or self._settings.head or reason.startswith("VersionMismatchError"):
            return reason
        host, port = parse_address(self._head)
        trouble = self.transport.trouble() or "a connection was made, and nothing came back"
        return (
            f"ConnectionLostError: the cluster at host {host}, port {port} has not accepted this node: {reason}; last attempt: {trouble}. "
            "The address must be that of the head (zfabric nodes shows it), which alone admits nodes. "
            f"The key file must be the one of that cluster: {self._settings.key_file}"
        )

    def refused(self) -> Mapping[str, int]:
        """Counts of refused messages, by reason."""
        return {f"refused_{reason.replace(' ', '_')}": count for reason, count in self.transport.refused.items() if count}

    @property
    def sources(self) -> list[tuple[Any, int]]:
        """Sockets to poll."""
        return self.transport.sources

    @property
    def unacknowledged(self) -> bool:
        """Whether this is the head, and a node that has not left owes an acknowledgement."""
        return self._settings.head and any(peer.link.unacknowledged() for peer in self.transport.peers.values())

    def close(self) -> None:
        """Close every socket. Unacknowledged messages are lost."""
        self.transport.close()


def _written_at(path: str) -> int:
    return os.stat(path).st_mtime_ns
