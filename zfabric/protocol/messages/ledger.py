"""What one node retains for another: entries of several kinds, with one numbering, one snapshot and one acknowledgement.

A local scheduler sends new and ended entries once per turn. After a restart of either daemon it sends all again before ``Ready``, and what
is not among them has ended; only rows of tasks are reported by their receiver, since their sender may not know yet which it needs.
"""

from collections.abc import Collection
from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes
from zfabric.protocol.checks import OBJECT, TASK, TUPLE, Check, layout, one_of
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Count, Rows

HOLD = "hold"
"""An object is needed: its home retains it. Or a home needs a value that the receiver has."""
SEARCH = "search"
"""The same of a restarted daemon that does not know the object's home: it asks every node."""
ROW = "row"
"""A retained row names an object: the home retains the row that makes it, not the value."""
ENTRUSTED = "entrusted"
"""The home of a job has a task's row (``Entrust``), and needs it if the task's home dies."""
UNFINISHED = "unfinished"
"""The same of a task that has no outcome, and whose parent has ended: it then runs again even if nothing refers to its values."""
_IDS = {HOLD: OBJECT, SEARCH: OBJECT, ROW: OBJECT, ENTRUSTED: TASK, UNFINISHED: TASK}


def _entries(kinds: Collection[str]) -> Check:
    """Make a check of rows ``(kind, ids)``."""
    check_rows = layout(one_of(kinds), TUPLE)

    def check(rows: Rows) -> None:
        check_rows(rows)
        for kind, ids in rows:
            _IDS[kind].check(ids)

    return check


@from_nodes(LOCAL_SCHEDULER)
class UpdateLedger(NamedTuple):
    """any node -> any node. Entries ``(kind, ids)`` that the receiver is to retain for the sender, then those that have ended.

    ``LedgerUpdated`` with the same number is the answer; 0 requests none. A hold's end is sent once all earlier holds of the sender are
    acknowledged: it may be what retains their objects. A node that leaves sends an empty update last: the answer acknowledges everything.
    """

    number: Count
    added: Annotated[Rows, _entries((HOLD, SEARCH, ROW))]
    ended: Annotated[Rows, _entries((HOLD, ROW, ENTRUSTED, UNFINISHED))] = ()


@from_nodes(LOCAL_SCHEDULER)
class LedgerUpdated(NamedTuple):
    """any node -> any node. The sender retains the entries of the ``UpdateLedger`` or ``Entrust`` with this number.

    Before it acknowledges a hold, the home of the job has the row that makes the object. ``entries`` are rows ``(kind, ids)``: of objects
    searched for, those at home here; on registration, with number 0, the tasks whose rows are entrusted to the sender.
    """

    number: Count
    entries: Annotated[Rows, _entries((SEARCH, ENTRUSTED))] = ()
