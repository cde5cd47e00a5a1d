"""Messages of ledgers and reports, as tests of two nodes send and expect them."""

from __future__ import annotations

from typing import Any

from zfabric.protocol import messages as m


def holding(number: int, object_ids: tuple[bytes, ...]) -> m.UpdateLedger:
    """The sender needs these objects."""
    return m.UpdateLedger(number, ((m.HOLD, object_ids),))


def searching(number: int, object_ids: tuple[bytes, ...]) -> m.UpdateLedger:
    """The sender's restarted daemon searches for the homes of these objects."""
    return m.UpdateLedger(number, ((m.SEARCH, object_ids),))


def found(number: int, object_ids: tuple[bytes, ...]) -> m.LedgerUpdated:
    """The answer to a search: these are at home at the sender."""
    return m.LedgerUpdated(number, ((m.SEARCH, object_ids),))


def released(object_ids: tuple[bytes, ...]) -> m.UpdateLedger:
    """The sender no longer needs these objects."""
    return m.UpdateLedger(0, (), ((m.HOLD, object_ids),))


def claimed(actor: bytes, name: str) -> m.UpdateLedger:
    """An actor at home at the sender claims a name."""
    return m.UpdateLedger(0, ((m.NAME, ((actor, "", name),)),))


def freed(actor: bytes, name: str) -> m.UpdateLedger:
    """The actor no longer needs its name."""
    return m.UpdateLedger(0, (), ((m.NAME, ((actor, "", name),)),))


def decided(actor: bytes, is_granted: bool) -> m.LedgerUpdated:
    """The head's answer to a claim."""
    return m.LedgerUpdated(0, ((m.GRANTED if is_granted else m.TAKEN, (actor,)),))


def living(job: bytes, lives: bool = True) -> m.UpdateLedger:
    """A job of the receiver goes on at the sender, or does not."""
    entries = ((m.LIVING, (job,)),)
    return m.UpdateLedger(0, entries) if lives else m.UpdateLedger(0, (), entries)


def leaving(node: bytes) -> m.UpdateLedger:
    """The sender is drained."""
    return m.UpdateLedger(0, ((m.LEAVING, (node,)),))


def runs(attempts: m.Rows) -> m.Holdings:
    """The sender has these attempts, ``(task_id, attempt)``, of the receiver's tasks."""
    return m.Holdings(b"", (), (), attempts, False)


def retains(rows: m.Rows, homes: m.Rows) -> m.Holdings:
    """The sender retains these values for the receiver: rows ``(object_id, size, refs contained)``."""
    return m.Holdings(b"", tuple((object_id, m.OK, *row) for object_id, *row in rows), homes, (), False)


def held(message: Any) -> tuple[bytes, ...]:
    """Objects of a message that its sender needs from now on, or whose home it searches for."""
    added = dict(message.added) if isinstance(message, m.UpdateLedger) else {}
    return tuple(added.get(m.HOLD, ())) + tuple(added.get(m.SEARCH, ()))
