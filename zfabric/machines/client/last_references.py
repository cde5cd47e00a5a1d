"""Call backs for objects to which no ref is left: in this process, or anywhere in the cluster.

``Releases`` reports the first kind. For the second the scheduler is asked, which answers when nothing needs the object any more
(``local_scheduler/nodes/reference_watches.py``). It must have a record of the object: results of calls are shared, arguments reported.
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.machines.client.arguments import Arguments
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.shared_results import SharedResults
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address

Callback = Callable[[bytes], None]


class LastReferences:
    """Call backs by object. Used under the client's lock, and called under it."""

    def __init__(self, outbox: Outbox, results: SharedResults, arguments: Arguments) -> None:
        self.here: dict[bytes, list[Callback]] = {}
        """What waits for the last ref in this process."""
        self.everywhere: dict[bytes, list[Callback]] = {}
        """What waits for the last ref in the cluster."""
        self.count = 0
        """Number of call backs that wait."""
        self._outbox = outbox
        self._results = results
        self._arguments = arguments

    def add(self, identifier: bytes, callback: Callback, everywhere: bool) -> None:
        """Call ``callback`` once no ref is left to an object to which this process has one."""
        self.count += 1
        if not everywhere:
            self.here.setdefault(identifier, []).append(callback)
            return
        if identifier not in self.everywhere:
            self._arguments.report(identifier)
            self._results.share((identifier,))
            self._outbox.add(m.WatchReferences, identifier)
        self.everywhere.setdefault(identifier, []).append(callback)

    def dropped(self, identifier: bytes) -> None:
        """Call back: the last ref in this process was dropped."""
        self._call(self.here, identifier)

    def on_unreferenced(self, now: float, source: Address, message: m.Unreferenced) -> None:
        """Call back: nothing in the cluster needs these objects any more."""
        for identifier in message.object_ids:
            self._call(self.everywhere, identifier)

    def _call(self, waiting: dict[bytes, list[Callback]], identifier: bytes) -> None:
        callbacks = waiting.pop(identifier, ())
        self.count -= len(callbacks)
        for callback in callbacks:
            callback(identifier)

    def repeat(self) -> None:
        """Ask a restarted daemon, which has received everything that this process holds."""
        for identifier in self.everywhere:
            self._outbox.add(m.WatchReferences, identifier)
