"""Acknowledgements of ends, and receipts: which outcomes of calls their callers have received (decision 0034).

Callers are asked before outcomes are acknowledged (``EndsReceived``); the acknowledgement, behind this node's holds, names those that have
not answered.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.channel import CallerReceipt, PeerInbox
from zfabric.machines.local_scheduler.due import OWED
from zfabric.machines.local_scheduler.records import NodeRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address

ACKNOWLEDGE_AFTER = 0.02
"""Seconds after which ends are acknowledged, together: nobody waits."""
RECEIPTS_WITHIN = 0.01
"""Seconds in which callers may confirm receipt."""


class Receipts:
    """Acknowledges ends. Has at most one request for receipts under way of each caller for each node."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.owed: dict[NodeRecord, float] = {}
        """When to acknowledge ends of each node, soonest first."""
        self._last = 0

    def accepted(self, node: NodeRecord, number: int, now: float) -> None:
        """Owe an acknowledgement up to this message."""
        self._owe(node, number, now + (RECEIPTS_WITHIN if node.inbox.callers else ACKNOWLEDGE_AFTER))

    def _owe(self, node: NodeRecord, number: int, due: float) -> None:
        node.inbox.newest = max(number, node.inbox.newest or 0)
        if node not in self.owed:
            self.owed[node] = due
            self.tables.deadlines.note(OWED, due)

    def begin_anew(self, node: NodeRecord) -> None:
        """Owe a node's former daemon nothing."""
        node.inbox = PeerInbox()

    # -- acknowledgements --

    def end_of_turn(self, now: float) -> None:
        """Acknowledge due ends and outcomes."""
        for node, due in list(self.owed.items()):
            if node.inbox.newest is None or self.tables.nodes.get(node.token) is not node:
                del self.owed[node]
            elif due <= now:
                if node.inbox.callers and not node.inbox.requested and self._request(node.inbox):
                    node.inbox.requested = True
                    self.owed[node] = now + RECEIPTS_WITHIN
                else:
                    del self.owed[node]
                    self._acknowledge(node, node.inbox.newest, now)

    def _acknowledge(self, node: NodeRecord, number: int, now: float) -> None:
        inbox = node.inbox
        inbox.newest, inbox.requested = None, False
        callers = tuple((caller, each.received) for caller, each in inbox.callers.items())
        self.tables.ledger.holds.send(node.token, m.EndsReceived(number, callers))
        if any(not each.token for each in inbox.callers.values()):
            self._owe(node, number, now + RECEIPTS_WITHIN)

    def next_deadline(self) -> float | None:
        """When an acknowledgement is due."""
        return min(self.owed.values(), default=None)

    # -- receipts --

    def sent(self, node: NodeRecord, caller: bytes, number: int) -> None:
        """Note that a process was sent outcomes of ``node``'s message ``number``."""
        receipt = node.inbox.callers.get(caller)
        if receipt is None:
            if caller not in self.tables.processes:
                return
            receipt = node.inbox.callers[caller] = CallerReceipt()
        receipt.sent = number

    def _request(self, inbox: PeerInbox) -> bool:
        """Ask callers that may lack outcomes. Return whether there were any."""
        asked = [(caller, each) for caller, each in inbox.callers.items() if not each.token]
        for caller, receipt in asked:
            self._last += 1
            receipt.token, receipt.requested = self._last, receipt.sent
            self.tables.send_to_client(self.tables.processes[caller], m.RequestReceipt(receipt.token))
        return bool(asked)

    def on_receipt(self, now: float, source: Address, message: m.Receipt) -> None:
        """Accept a receipt for what was sent before its request."""
        for node in self.tables.nodes.values():
            receipt = node.inbox.callers.get(source[1:])
            if receipt is not None and receipt.token == message.token:
                receipt.received, receipt.token = receipt.requested, 0
                if receipt.received == receipt.sent:
                    del node.inbox.callers[source[1:]]
                self._owe(node, receipt.received, now)

    def caller_exited(self, caller: bytes) -> None:
        """Owe an exited caller nothing."""
        for node in self.tables.nodes.values():
            receipt = node.inbox.callers.pop(caller, None)
            if receipt is not None:
                self._owe(node, receipt.sent, 0.0)
