"""The global scheduler."""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes
from zfabric.protocol.checks import BYTES, COUNT, INT, NODE, SECONDS, STR, each, layout
from zfabric.protocol.ids import GLOBAL_SCHEDULER, LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import NodeId, Rows, Seconds

FOR_LIFE = 1e9
"""Seconds that a task of ``Place`` runs if it makes an actor: the actor holds its resources until it ends."""


@from_nodes(GLOBAL_SCHEDULER)
class Heartbeat(NamedTuple):
    """local scheduler -> global scheduler. The node's resources: ``total`` and ``available`` are (resource, amount) pairs in 1/10,000.

    ``queued`` is the number of tasks that wait, ``mean_seconds`` the time that a task takes on average (0.0: none has ended yet).
    ``lasting``, in the form of ``total``, is what is held for long: by bundles of placement groups, and by actors that live or wait. The
    message is sent before each ``Place``, and after a change once some time has passed since the last one. The next one replaces a lost
    one.
    """

    node: NodeId
    total: Rows
    available: Rows
    queued: int
    mean_seconds: Seconds
    lasting: Rows = ()


@from_nodes(GLOBAL_SCHEDULER)
class Place(NamedTuple):
    """local scheduler -> global scheduler. Ask which nodes could run tasks: rows ``(token, demand pairs, tasks, seconds, inputs)``.

    ``tasks`` is the number of tasks with this demand, ``seconds`` how long one runs on average (0.0: unknown). ``inputs`` are rows ``(node,
    bytes)``: how much of a task's inputs is on each node. Tasks that make actors run for ``FOR_LIFE``, and are placed where there is room.
    If ``Placed`` does not arrive, the message is repeated.
    """

    rows: Annotated[Rows, layout(INT, each(layout(STR, INT)), COUNT, SECONDS, each(layout(BYTES, INT)))]


@from_nodes(LOCAL_SCHEDULER)
class Placed(NamedTuple):
    """global scheduler -> local scheduler. Where the tasks of ``Place`` are to run: rows ``(token, places)``.

    ``places`` are rows ``(node, tasks)``, which may include the asking node. They are empty if no node will ever meet the demand. If nodes
    could meet it, but actors or bundles leave no room there, they are named with 0 tasks: the sender of ``Place`` asks again.
    """

    rows: Annotated[Rows, layout(INT, each(layout(NODE, COUNT)))]
