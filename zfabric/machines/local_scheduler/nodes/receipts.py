"""Which outcomes of calls on other nodes their callers have received.

An actor runs a repeated call again once its outcome is acknowledged. So this node acknowledges an outcome when its caller has it, not
earlier: this daemon may die before its frame to the caller has arrived, and the caller then repeats the call. Callers are asked together,
before ends are acknowledged (``Delegations``). If a caller does not read, nothing waits for it: the acknowledgement names it.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.records import CallerReceipt, NodeRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address


class Receipts:
    """Requests receipts of callers, one at a time of each for each node."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._last = 0

    def sent(self, node: NodeRecord, caller: bytes, number: int) -> None:
        """Note that a process was sent an outcome that ``node`` had sent in the message with this number."""
        receipt = node.receipts.get(caller)
        if receipt is None:
            if caller not in self.tables.processes:
                return
            receipt = node.receipts[caller] = CallerReceipt()
        receipt.sent = number

    def request(self, node: NodeRecord) -> bool:
        """Request receipts of the callers that may lack outcomes of ``node`` and were not asked. Return whether there were any."""
        asked = [(caller, each) for caller, each in node.receipts.items() if not each.token]
        for caller, receipt in asked:
            self._last += 1
            receipt.token, receipt.requested = self._last, receipt.sent
            self.tables.send_to_client(self.tables.processes[caller], m.RequestReceipt(receipt.token))
        return bool(asked)

    def on_receipt(self, now: float, source: Address, message: m.Receipt) -> None:
        """A caller has received what it was sent before a request."""
        for node in self.tables.nodes.values():
            receipt = node.receipts.get(source[1:])
            if receipt is not None and receipt.token == message.token:
                receipt.received, receipt.token = receipt.requested, 0
                if receipt.received == receipt.sent:
                    del node.receipts[source[1:]]
                self.tables.owe(node, receipt.received, now)

    def caller_exited(self, caller: bytes) -> None:
        """Nobody lacks outcomes that were for a process which is gone."""
        for node in self.tables.nodes.values():
            receipt = node.receipts.pop(caller, None)
            if receipt is not None:
                self.tables.owe(node, receipt.sent, 0.0)
