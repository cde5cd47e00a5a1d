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

    ``queued`` is the number of tasks that wait, ``mean_seconds`` a task's average length (0.0: unknown). ``lasting`` is what bundles, and
    actors that live or wait, hold. Sent before each ``Place``, and from time to time after a change: each replaces
    the one before, also a lost one.
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

    ``seconds`` is the average length of one (0.0: unknown). ``inputs`` are rows ``(node, bytes of a task's inputs there)``. Tasks that make
    actors run for ``FOR_LIFE``, and go where there is room. Repeated until ``Placed`` arrives.
    """

    rows: Annotated[Rows, layout(INT, each(layout(STR, INT)), COUNT, SECONDS, each(layout(BYTES, INT)))]


@from_nodes(LOCAL_SCHEDULER)
class Placed(NamedTuple):
    """global scheduler -> local scheduler. Where the tasks of ``Place`` are to run: rows ``(token, places)``.

    ``places`` are rows ``(node, tasks)``, the asking node perhaps among them; empty if no node will ever meet the demand. Nodes that could,
    but whose room actors or bundles hold, have 0 tasks: ask again.
    """

    rows: Annotated[Rows, layout(INT, each(layout(NODE, COUNT)))]
