"""Messages of ledgers, as tests of two nodes send and expect them."""

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


def held(message: Any) -> tuple[bytes, ...]:
    """Objects of a message that its sender needs from now on, or whose home it searches for."""
    added = dict(message.added) if isinstance(message, m.UpdateLedger) else {}
    return tuple(added.get(m.HOLD, ())) + tuple(added.get(m.SEARCH, ()))
