"""Tasks that run on another node than their home. Home and executor are the local schedulers of two nodes.

To a home, another node is a worker that runs many tasks at once. To an executor, a home is a process that submits tasks. The executor
neither retries such a task nor passes it on. It reports how the attempt ended, and the home decides.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.access import from_nodes
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Ids, Row, Rows

LOST = 5
"""A status of ``Ended``: the worker of the attempt died. The one output is a packed row ``(suspect, pid, exit code, signal, peak, stderr,
memory)``. ``suspect``: the worker was running the task when it died. ``memory``: it was killed for the memory it used."""

STAYS = 6
"""A status of ``Ended``: the outcome has refs whose homes the executor's restarted daemon does not know. The task runs again at its
home."""


ANY_DAEMON = bytes(8)
"""``RegisterNode.peer`` from a restarted daemon that does not know the receiver yet: the receiver is to register."""


@from_nodes(LOCAL_SCHEDULER)
class RegisterNode(NamedTuple):
    """local scheduler -> local scheduler of another node. The first message on every link between two nodes.

    ``daemon`` is the incarnation of the sender's daemon. ``peer`` depends on what went before:

    - Empty: the two nodes are new to each other, and have nothing to repeat.
    - The incarnation of the receiver's daemon: one of the two was restarted. What the sender sent before is void. Between this message and
      ``Ready`` it repeats what it has of the receiver's.
    - ``ANY_DAEMON``: the sender was restarted and does not know the receiver yet. The receiver registers again.
    """

    protocol: int
    daemon: bytes
    peer: bytes = b""


@from_nodes(LOCAL_SCHEDULER)
class RunningDelegated(NamedTuple):
    """executor -> home, while it registers. Rows ``(task_id, attempt)`` of the attempts that the executor still has.

    Those are attempts that run, attempts whose ends are not acknowledged, and attempts that made actors which live there. An attempt
    that is not listed was lost with a daemon: the home gives its task a new one. Of several attempts of a task, the one that is listed last
    counts. The home stops attempts that it no longer needs.
    """

    rows: Rows


@from_nodes(LOCAL_SCHEDULER)
class ClaimValues(NamedTuple):
    """home -> node that retains values for it, while the home registers. The home needs these values: ``(object_id, refs contained)``.

    ``homes`` is as in ``Delegate``. The node answers ``CopyLost`` for each value that it does not have.
    """

    rows: Rows
    homes: Rows


@from_nodes(LOCAL_SCHEDULER)
class RetainedValues(NamedTuple):
    """node -> home of objects, while the node registers. Values that it retains for the home: ``(object_id, size, refs contained)``.

    ``homes`` is as in ``Delegate``. The home sends ``Release`` for those that it does not need.
    """

    rows: Rows
    homes: Rows


@from_nodes(LOCAL_SCHEDULER)
class Delegate(NamedTuple):
    """home -> executor. Task rows of one job to run, in order.

    ``job`` is ``(job id, namespace, home of the job)``. ``functions`` are functions of the rows that this node has not received yet, as in
    ``Export``. Each row is attempt number ``attempt``, unless ``attempts`` says otherwise: ``(index in rows, attempt)``. ``values`` has
    the rows' dependencies: ``(object_id, inline bytes or an offer, refs contained)``, with offers as in ``FetchedValues``. ``homes`` has a
    row ``(object_id, node)`` for each object named here whose home is not the sender.
    """

    job: Row
    functions: Rows
    rows: Rows
    attempts: Rows
    values: Rows
    homes: Rows
    attempt: int


@from_nodes(LOCAL_SCHEDULER)
class Reclaim(NamedTuple):
    """home -> executor. The home has room, or places tasks anew: return the tasks that have not begun. ``Reclaimed`` answers."""

    task_ids: Ids


@from_nodes(LOCAL_SCHEDULER)
class Reclaimed(NamedTuple):
    """executor -> home. Tasks that the executor has not begun and returns: the home has them again, as the same attempts.

    Without a ``reason`` it answers ``Reclaim``, and is empty if all have begun. Otherwise the executor returns them by itself:

    - "blocked": the executor may not start more workers beside its blocked ones. At home, the tasks can run on top of what waits for them.
    - "full": actors, or bundles of placement groups, leave no room for the tasks on the executor.
    """

    task_ids: Ids
    reason: str


@from_nodes(LOCAL_SCHEDULER)
class StopDelegated(NamedTuple):
    """home -> executor. Stop an attempt. ``reason`` is "cancelled", "timeout" or "force"; ``recursive`` stops what it submitted as well.

    If the attempt has made an actor, the actor's process ends at once.
    """

    task_id: bytes
    attempt: int
    reason: str
    recursive: bool


@from_nodes(LOCAL_SCHEDULER)
class StopChildren(NamedTuple):
    """home -> every other node. Tasks and calls were cancelled with their children: stop the children that were submitted there.

    ``parents`` are the ids of the cancelled tasks and calls, ``prefixes`` the prefixes of their children's ids. ``reason`` is "cancelled"
    or "force".
    """

    prefixes: Ids
    parents: Ids
    reason: str


@from_nodes(LOCAL_SCHEDULER)
class Ended(NamedTuple):
    """executor -> home. Attempts that ended.

    ``completed`` has the fields of ``Completed``, but a status may also be ``LOST`` or ``STAYS``, and a large value is represented by its
    size. The executor retains that value until the home sends ``Release``. ``number`` counts these messages. The executor retains them,
    and pins the objects that they name, until ``EndsReceived``. ``homes`` is as in ``Delegate``.
    """

    number: int
    completed: Row
    homes: Rows


@from_nodes(LOCAL_SCHEDULER)
class RelayedYields(NamedTuple):
    """executor -> home. Values of streams, in order: rows as in ``Yielded``. A large value is represented by its size, as in ``Ended``.

    These messages share their numbers with ``Ended``, and are retained and acknowledged as those are.
    """

    number: int
    rows: Rows
    homes: Rows


@from_nodes(LOCAL_SCHEDULER)
class EndsReceived(NamedTuple):
    """home -> executor. The home has processed all ``Ended`` up to this number, and is a registered holder of the objects they name.

    Nobody waits for it, so one message acknowledges what arrived in a while. ``callers`` are rows ``(caller, number)`` of processes that
    may not have received all outcomes of their calls. The executor retains the outcomes for a caller above that number until one of
    these messages no longer names the caller.
    """

    number: int
    callers: Rows = ()


@from_nodes(LOCAL_SCHEDULER)
class Borrow(NamedTuple):
    """any node -> home of objects. The sender has refs to these objects. ``Borrowed`` with the same number is the answer.

    A restarted daemon does not know the homes of the objects that its processes refer to. It asks every node, with ``certain`` false.
    """

    number: int
    object_ids: Ids
    certain: bool = True


@from_nodes(LOCAL_SCHEDULER)
class Borrowed(NamedTuple):
    """home of objects -> borrower. The borrower is registered as a holder until it sends ``Release``.

    ``unknown`` are the objects whose home is not the sender, or no longer.
    """

    number: int
    unknown: Ids = ()


@from_nodes(LOCAL_SCHEDULER)
class FetchValues(NamedTuple):
    """any node -> home of objects. Requests values; ``FetchedValues`` answers as soon as they exist."""

    object_ids: Ids


@from_nodes(LOCAL_SCHEDULER)
class FetchedValues(NamedTuple):
    """home of objects -> any node. Requested values: rows ``(object_id, status, value, refs contained)``. ``homes`` is as in ``Delegate``.

    A small value is bytes. For a large one there is an offer, ``(size, node, …)``: the nodes to copy it from, in the order in which to ask
    them. ``()`` says that the object is unknown here.
    """

    rows: Rows
    homes: Rows


@from_nodes(LOCAL_SCHEDULER)
class CopyLost(NamedTuple):
    """any node -> home of an object. The sender has lost the value that it retained for the home."""

    object_id: bytes
    reason: str


@from_nodes(LOCAL_SCHEDULER)
class RetainCopies(NamedTuple):
    """home of objects -> a node that may have copies. The home has lost its own: retain these for it until ``Release``.

    The node answers ``CopyLost`` for each that it does not have.
    """

    object_ids: Ids


@from_nodes(LOCAL_SCHEDULER)
class NodeDraining(NamedTuple):
    """node -> all others. The sender is being drained: nothing new is to be placed there."""


@from_nodes(LOCAL_SCHEDULER)
class CopyValues(NamedTuple):
    """node that is drained -> home or holder of objects. Copy these values, which the sender has. ``ValuesCopied`` is the answer.

    The last of these messages is empty. Its answer confirms that all messages before it have arrived.
    """

    object_ids: Ids


@from_nodes(LOCAL_SCHEDULER)
class ValuesCopied(NamedTuple):
    """home or holder of objects -> node that is drained. Each of these values has been copied, or is not needed."""

    object_ids: Ids


@from_nodes(LOCAL_SCHEDULER)
class EndJob(NamedTuple):
    """home of a job -> every other node. The job has ended. ``JobGone`` is the answer."""

    job: bytes


@from_nodes(LOCAL_SCHEDULER)
class JobGone(NamedTuple):
    """any node -> home of a job. No process works for this job here any more, and none of its values is here."""

    job: bytes


@from_nodes(LOCAL_SCHEDULER)
class JobLives(NamedTuple):
    """another node -> home of a job. Whether the job goes on for actors at home at the sender.

    Those are living actors that outlive the driver.
    """

    job: bytes
    lives: bool


@from_nodes(LOCAL_SCHEDULER)
class JobOutput(NamedTuple):
    """executor -> home of a job. Output for the job's driver: ``lines`` as in ``LogLines``, ``notices`` rows ``(level, text)``."""

    job: bytes
    lines: Rows
    notices: Rows
