"""An actor that moves, since its node is drained: running calls end here, all others run there (decision 0034).

The process ends once nothing runs and callers have all outcomes. A concurrent call may wait for a held one, so calls are held for a while,
let through for as long, then held for twice as long: waiting calls end in the pauses, and some hold outlasts any other call.
"""

from __future__ import annotations

from zfabric.machines.worker.mailbox import Mailbox
from zfabric.protocol.options import option


class Relocation:
    """Holds calls. ``patience`` is the first hold's seconds, 0 if calls run one at a time."""

    def __init__(self, mailbox: Mailbox, now: float, patience: float) -> None:
        self.mailbox = mailbox
        self.open = False
        """Whether calls are let through."""
        self.changes_at: float | None = None
        self._window = self._patience = patience
        self._close(now)

    def _close(self, now: float) -> None:
        self.open = False
        self.changes_at = now + self._patience if self._patience > 0 else None
        self._patience *= 2
        self.hold()

    def hold(self) -> None:
        """Hold what is queued, unless calls are let through."""
        if self.open:
            return
        mailbox = self.mailbox
        for queue in (mailbox.queue, *mailbox.groups.values()):
            for item in [queue.popleft() for _ in range(len(queue))]:
                (queue if item.caller == mailbox.own else mailbox.held).append(item)

    def tick(self, now: float, is_running: bool) -> None:
        """Let calls through or hold them, when due. If none runs, none waits for a held one."""
        if self.changes_at is None or now < self.changes_at:
            return
        if self.open:
            self._close(now)
            return
        if not is_running:
            self.changes_at = now + self._window
            return
        self.open, self.changes_at = True, now + self._window
        mailbox = self.mailbox
        while mailbox.held:
            item = mailbox.held.popleft()
            mailbox.groups.get(option(item.options or (), "concurrency_group"), mailbox.queue).append(item)

    def end(self) -> None:
        """Let no more through: the process ends."""
        self.changes_at = None
