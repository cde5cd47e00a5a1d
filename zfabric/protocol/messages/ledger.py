"""What one node retains for another: entries of several kinds, with one numbering, one snapshot and one acknowledgement.

A local scheduler sends new and ended entries once per turn. After a restart of either daemon it sends all again before ``Ready``, and what
is not among them has ended; only rows of tasks are reported by their receiver, since their sender may not know yet which it needs.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes
from zfabric.protocol.checks import JOB, NODE, OBJECT, TASK, TUPLE, Check, entries, layout, one_of, short_text
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Count, Rows
from zfabric.protocol.names import NAME_BYTES_MAX

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
LIVING = "living"
"""A job goes on at the sender, though its driver may end: it has detached actors there. The home of the job retains it."""
LEAVING = "leaving"
"""The node of this id, the sender, is being drained: nothing new is placed there."""
COPY = "copy"
"""The sender, which is drained, has the value: the receiver, a home or holder, is to copy it."""
COPIED = "copied"
"""Report: these values have been copied, or are not needed."""
NAME = "name"
"""An actor claims a name: the head retains it. An entry is ``(actor_id, namespace, name)``."""
GRANTED, TAKEN = "granted", "taken"
"""Reports of the head: ids of actors that have the names that they claim, and of those whose names others have."""
_OBJECTS, _TASKS, _JOBS, _NODES = map(entries, (OBJECT, TASK, JOB, NODE))
_TEXT = short_text(NAME_BYTES_MAX)
_NAMES = layout(TASK, _TEXT, _TEXT)
_ADDED = {**dict.fromkeys((HOLD, SEARCH, ROW, COPY), _OBJECTS), LIVING: _JOBS, LEAVING: _NODES, NAME: _NAMES}
_ENDED = {**dict.fromkeys((HOLD, ROW), _OBJECTS), **dict.fromkeys((ENTRUSTED, UNFINISHED), _TASKS), LIVING: _JOBS, NAME: _NAMES}
_REPORTED = {**dict.fromkeys((SEARCH, COPIED), _OBJECTS), **dict.fromkeys((ENTRUSTED, GRANTED, TAKEN), _TASKS)}


def _of_kinds(checks: Mapping[str, Check]) -> Check:
    """Make a check of rows ``(kind, entries)``."""
    check_rows = layout(one_of(checks), TUPLE)

    def check(rows: Rows) -> None:
        check_rows(rows)
        for kind, found in rows:
            checks[kind](found)

    return check


@from_nodes(LOCAL_SCHEDULER)
class UpdateLedger(NamedTuple):
    """any node -> any node. Entries ``(kind, entries)`` that the receiver is to retain for the sender, then those that have ended.

    ``LedgerUpdated`` with the same number is the answer; 0 requests none. A hold's end is sent once all earlier holds of the sender are
    acknowledged: it may be what retains their objects. A node that leaves sends an empty update last: the answer acknowledges everything.
    """

    number: Count
    added: Annotated[Rows, _of_kinds(_ADDED)]
    ended: Annotated[Rows, _of_kinds(_ENDED)] = ()


@from_nodes(LOCAL_SCHEDULER)
class LedgerUpdated(NamedTuple):
    """any node -> any node. The sender retains the entries of the ``UpdateLedger`` or ``Entrust`` with this number.

    Before it acknowledges a hold, the home of the job has the row that makes the object. ``entries`` are rows ``(kind, ids)``: of objects
    searched for, those at home here; with number 0, the tasks whose rows are entrusted to the sender, on registration, or what has
    become of claims and copies.
    """

    number: Count
    entries: Annotated[Rows, _of_kinds(_REPORTED)] = ()
