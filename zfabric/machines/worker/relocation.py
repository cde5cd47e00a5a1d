"""An actor that is to be made again elsewhere, since its node is drained: its running calls end here, all others run there.

Calls that wait, and those that arrive, are held. The process ends once nothing runs in it and the callers have all outcomes; callers send
calls without an outcome to the next life. Calls of the actor by its own process are not held, since nobody would send those again.

If an actor runs several calls at once, one of them may wait for a call that is held. So calls are held for a while, let through for as
long, and then held for twice as long as before. Calls that wait for others end in the pauses between, and some hold outlasts any other
call.
"""

from __future__ import annotations

from zfabric.machines.worker.mailbox import Mailbox
from zfabric.protocol.options import option


class Relocation:
    """Holds the calls of an actor. ``patience`` is the first time for which it does so, 0 if the actor runs one call at a time."""

    def __init__(self, mailbox: Mailbox, now: float, patience: float) -> None:
        self.mailbox = mailbox
        self.open = False
        """Whether calls are let through."""
        self.changes_at: float | None = None
        """When ``open`` changes."""
        self._window = self._patience = patience
        self._close(now)

    def _close(self, now: float) -> None:
        self.open = False
        self.changes_at = now + self._patience if self._patience > 0 else None
        self._patience *= 2
        self.hold()

    def hold(self) -> None:
        """Hold what is queued, if no calls are let through now."""
        if self.open:
            return
        mailbox = self.mailbox
        for queue in (mailbox.queue, *mailbox.groups.values()):
            for item in [queue.popleft() for _ in range(len(queue))]:
                (queue if item.caller == mailbox.own else mailbox.held).append(item)

    def tick(self, now: float, is_running: bool) -> None:
        """Let calls through, or hold them again, when the time for it has come. If none runs, none waits for one that is held."""
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
        """Let no call through any more: the process is about to end."""
        self.changes_at = None
