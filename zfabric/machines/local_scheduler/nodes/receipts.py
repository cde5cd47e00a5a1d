"""Receipts: which outcomes of calls on other nodes their callers have received.

An actor runs a repeated call again once its outcome is acknowledged. So outcomes are acknowledged only when callers have them: this daemon
may die before its frame reaches a caller, which then repeats the call. Callers are asked before ends are acknowledged (``Delegations``);
the acknowledgement names those that have not answered.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.records import CallerReceipt, NodeRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address


class Receipts:
    """Requests receipts, at most one at a time of each caller for each node."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._last = 0

    def sent(self, node: NodeRecord, caller: bytes, number: int) -> None:
        """Note that a process was sent outcomes of ``node``'s message ``number``."""
        receipt = node.receipts.get(caller)
        if receipt is None:
            if caller not in self.tables.processes:
                return
            receipt = node.receipts[caller] = CallerReceipt()
        receipt.sent = number

    def request(self, node: NodeRecord) -> bool:
        """Request receipts of the callers that may lack outcomes of ``node``. Return whether there were any."""
        asked = [(caller, each) for caller, each in node.receipts.items() if not each.token]
        for caller, receipt in asked:
            self._last += 1
            receipt.token, receipt.requested = self._last, receipt.sent
            self.tables.send_to_client(self.tables.processes[caller], m.RequestReceipt(receipt.token))
        return bool(asked)

    def on_receipt(self, now: float, source: Address, message: m.Receipt) -> None:
        """Accept a receipt for what was sent before its request."""
        for node in self.tables.nodes.values():
            receipt = node.receipts.get(source[1:])
            if receipt is not None and receipt.token == message.token:
                receipt.received, receipt.token = receipt.requested, 0
                if receipt.received == receipt.sent:
                    del node.receipts[source[1:]]
                self.tables.owe(node, receipt.received, now)

    def caller_exited(self, caller: bytes) -> None:
        """Drop the receipts of an exited caller: nothing is owed to it."""
        for node in self.tables.nodes.values():
            receipt = node.receipts.pop(caller, None)
            if receipt is not None:
                self.tables.owe(node, receipt.sent, 0.0)
