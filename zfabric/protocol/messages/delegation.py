"""Tasks that run on another node than their home: home and executor are local schedulers of two nodes.

To a home, another node is a worker that runs many tasks at once. To an executor, a home is a process that submits tasks. The executor
never retries such a task and never passes it on: it reports how the attempt ended, and the home decides.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Row, Rows

LOST = 5
"""A status of ``Ended``: the attempt came to nothing, since its worker died. The one output is a packed row ``(suspect, pid, exit code,
signal, peak, stderr, memory)``: whether the worker ran the task when it died, how it died, and whether it was killed for its memory."""

STAYS = 6
"""A status of ``Ended``: the attempt ended with refs whose homes its node does not know, since its daemon was restarted. The task runs
again at home."""


ANY_DAEMON = bytes(8)
"""``RegisterNode.peer`` of a daemon that was restarted and asks whoever receives it to register."""


class RegisterNode(NamedTuple):
    """local scheduler -> local scheduler of another node. The first message on every link between two nodes.

    ``daemon`` is the incarnation of the sender's daemon. ``peer`` is that of the receiver's, if one of the two was restarted: then the
    sender repeats what it has of the receiver's between this and ``Ready``, and what it sent before is void. ``peer`` is empty between
    two nodes that are new to each other, which have nothing to repeat. If it is ``ANY_DAEMON``, the sender was restarted and does not know
    the receiver yet, which registers again.
    """

    protocol: int
    daemon: bytes
    peer: bytes = b""


class RunningDelegated(NamedTuple):
    """executor -> home, while it registers. Attempts ``(task_id, attempt)`` that the executor has, or whose end is not acknowledged, and
    those that have made actors which live there.

    What is not listed is lost with a daemon: the home gives it a new attempt. What the home does not want any more is stopped.
    """

    rows: Rows


class ClaimValues(NamedTuple):
    """home -> node that retains values for it, while the home registers. Rows ``(object_id, refs contained)``.

    ``homes`` is as in ``Delegate``. ``CopyLost`` is the answer for a value that is not there.
    """

    rows: Rows
    homes: Rows


class RetainedValues(NamedTuple):
    """node -> home of values that it retains for that, while it registers. Rows ``(object_id, size, refs contained)``; ``homes`` as in
    ``Delegate``. The home releases those that it does not need (``Release``)."""

    rows: Rows
    homes: Rows


class Delegate(NamedTuple):
    """home -> executor. Task rows of one job to run, in order.

    ``job`` is ``(job id, namespace, home of the job)``. ``functions`` are those of the rows that this node has not received yet, as in
    ``Export``. ``attempts`` lists the rows that are not attempt ``attempt``: ``(index in rows, attempt)``. ``values`` are those of the
    rows' dependencies: ``(object_id, inline bytes or an offer, refs contained)``, where an offer is as in ``FetchedValues``. ``homes`` are
    rows ``(object_id, node)`` of all objects named here whose home is not the sender.
    """

    job: Row
    functions: Rows
    rows: Rows
    attempts: Rows
    values: Rows
    homes: Rows
    attempt: int


class Reclaim(NamedTuple):
    """home -> executor. Return those of these tasks that have not begun: the home has room. ``Reclaimed`` is the answer."""

    task_ids: Ids


class Reclaimed(NamedTuple):
    """executor -> home. Tasks that were not begun here and will not be: the home has them again, as the same attempts.

    It answers ``Reclaim``, empty if all have begun. With a ``reason`` nobody asked. "blocked": as many workers of the executor are
    blocked as may be, so that the tasks are to run at home, on top of what waits for them. "full": actors, or bundles of placement
    groups, leave no room for them there.
    """

    task_ids: Ids
    reason: str


class StopDelegated(NamedTuple):
    """home -> executor. Stop an attempt. ``reason`` is "cancelled", "timeout" or "force"; ``recursive`` stops what it submitted as well.

    An actor that the attempt has made ends at once, with its process.
    """

    task_id: bytes
    attempt: int
    reason: str
    recursive: bool


class StopChildren(NamedTuple):
    """home -> every other node. Tasks and calls were cancelled with their children: stop those that they submitted there.

    ``prefixes`` are those of the children's ids, ``parents`` the ids of the tasks and calls. ``reason`` is "cancelled" or "force".
    """

    prefixes: Ids
    parents: Ids
    reason: str


class Ended(NamedTuple):
    """executor -> home. Attempts that ended. ``completed`` has the fields of ``Completed``, with two differences: a status may be ``LOST``
    or ``STAYS``, and of a large value only its size is there: the executor retains it until the home sends ``Release``.

    ``number`` counts these messages. The executor retains them, and pins the objects that they name, until ``EndsReceived``. ``homes`` is
    as in ``Delegate``.
    """

    number: int
    completed: Row
    homes: Rows


class RelayedYields(NamedTuple):
    """executor -> home. Values of streams, in order: rows as in ``Yielded``, but of a large value only its size is there, as in ``Ended``.

    These messages share their numbers with ``Ended``, and are retained and acknowledged as those are.
    """

    number: int
    rows: Rows
    homes: Rows


class EndsReceived(NamedTuple):
    """home -> executor. The home has processed all ``Ended`` up to this number, and is a registered holder of the objects they name.

    Nobody waits for it: it is sent a while after the first of these, for all of them. ``callers`` are processes that may not have received
    all outcomes of their calls: rows ``(caller, number)``. The executor retains those that it sent to them above that number until one of
    these messages no longer names them.
    """

    number: int
    callers: Rows = ()


class Borrow(NamedTuple):
    """any node -> home of objects. This node has refs to these objects. ``Borrowed`` with the same number is the answer.

    A restarted daemon does not know the homes of what its processes refer to, and asks every node: ``certain`` is false.
    """

    number: int
    object_ids: Ids
    certain: bool = True


class Borrowed(NamedTuple):
    """home of objects -> borrower. The node is registered as a holder; it releases the objects by ``Release``.

    ``unknown`` are the objects whose home is not, or is no longer, the sender.
    """

    number: int
    unknown: Ids = ()


class FetchValues(NamedTuple):
    """any node -> home of objects. Requests values; ``FetchedValues`` answers as soon as they exist."""

    object_ids: Ids


class FetchedValues(NamedTuple):
    """home of objects -> any node. Requested values: rows ``(object_id, status, value, refs contained)``; ``homes`` as in ``Delegate``.

    A value is bytes; or, if it is large, an offer: ``(size, node, …)``, the nodes to copy it from, the first one to be asked first; or
    ``()`` if the object is unknown here.
    """

    rows: Rows
    homes: Rows


class CopyLost(NamedTuple):
    """any node -> home of an object. The value is lost that this node retained for the home."""

    object_id: bytes
    reason: str


class RetainCopies(NamedTuple):
    """home of objects -> a node that may have copies. Retain them for this home, which has lost its own, until ``Release``.

    ``CopyLost`` is the answer for each that is not there.
    """

    object_ids: Ids


class NodeDraining(NamedTuple):
    """node -> all others. It is drained: nothing new is to be placed there."""


class CopyValues(NamedTuple):
    """node that is drained -> home or holder of objects. Copy these values, which the sender has; ``ValuesCopied`` answers.

    If there are none, it is sent last of all, and the answer says that all messages before it have arrived.
    """

    object_ids: Ids


class ValuesCopied(NamedTuple):
    """home or holder of objects -> node that is drained. These values are copied, or nobody needs them."""

    object_ids: Ids


class EndJob(NamedTuple):
    """home of a job -> every other node. The job has ended. ``JobGone`` is the answer."""

    job: bytes


class JobGone(NamedTuple):
    """any node -> home of a job. No process works for this job here any more, and none of its values is here."""

    job: bytes


class JobLives(NamedTuple):
    """another node -> home of a job. Whether living actors that outlive the driver are at home at the sender: the job goes on for them."""

    job: bytes
    lives: bool


class JobOutput(NamedTuple):
    """executor -> home of a job. Output for the job's driver: ``lines`` as in ``LogLines``, ``notices`` rows ``(level, text)``."""

    job: bytes
    lines: Rows
    notices: Rows
