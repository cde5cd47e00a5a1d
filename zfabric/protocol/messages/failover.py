"""The home of a job takes over the tasks that were at home on a node that dies.

The home of a job is the node of its driver. Before the death, the tasks' home sends it rows of tasks. After it, all others report what they
have of those tasks and their values.
"""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes
from zfabric.protocol.checks import ATTEMPT, COUNT, INT, NODE, OBJECT, TASK, MalformedFrame, column, layout, many, optional
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.delegation import STAYS, check_job
from zfabric.protocol.messages.rows import Count, FunctionRows, Homes, JobId, NodeId, Rows, TaskIds, TaskRows
from zfabric.protocol.messages.tasks import OK


@from_nodes(LOCAL_SCHEDULER)
class Entrust(NamedTuple):
    """home of tasks -> home of their job. Task rows that the receiver needs if the sender dies, with all rows that these name.

    They are ``ENTRUSTED`` entries of the sender's ledger; ``LedgerUpdated`` with the same number is the answer. Other nodes refer to the
    tasks' values, or the tasks are ``unfinished``, perhaps with earlier rows. ``functions`` are new to the receiver.
    """

    number: Count
    job: JobId
    functions: FunctionRows
    rows: TaskRows
    homes: Homes
    unfinished: TaskIds = ()

    def check(self) -> None:
        """Check that all tasks are of the job."""
        check_job(self.job, self.rows)


PENDING = -1
"""The status in ``Holdings`` of an object whose value is not there."""


def _check_objects(rows: Rows) -> None:
    for _, status, value, _ in rows:
        if not PENDING <= status <= STAYS or type(value) is not (int if status == OK else bytes):
            raise MalformedFrame("there is no value, or its size, or an outcome that is not a value")
        if status == OK:
            COUNT.check((value,))


@from_nodes(LOCAL_SCHEDULER)
class Holdings(NamedTuple):
    """any node -> any node. What the sender has of objects and tasks at home at the receiver, or at the dead ``node`` that it succeeds.

    ``objects`` are rows ``(object_id, status, value, refs inside)``. ``status`` -1: the sender does not have the value. OK: it retains the
    value, of size ``value``, for the receiver. Otherwise the two are an outcome that is not a value. ``attempts`` are rows ``(task_id,
    attempt)`` of tasks delegated to the sender. They run, or their ends are not acknowledged, or they made actors that live there. Of a
    task's attempts the last listed counts.

    To a living home, with an empty ``node``, it is sent when either daemon is new: tasks that are missing get a new attempt. The home stops
    the attempts, and ends the holds, that it does not need. To an heir, the last message is ``complete``, and what the sender needs of the
    objects follows (``UpdateLedger``).
    """

    node: Annotated[bytes, optional(NODE)]
    objects: Annotated[Rows, layout(OBJECT, INT, column(bytes, int), many(OBJECT)), _check_objects]
    homes: Homes
    attempts: Annotated[Rows, layout(TASK, ATTEMPT)]
    complete: bool


@from_nodes(LOCAL_SCHEDULER)
class TookOver(NamedTuple):
    """any node -> any node. The sender has taken over from the dead ``node``, and holds all objects that it needs for that.

    Once all nodes have sent it, all homes release what the dead node held. A daemon that never knew the dead node answers reports with it.
    """

    node: NodeId
