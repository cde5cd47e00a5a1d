"""Registration: process -> local scheduler."""

from typing import NamedTuple

from zfabric.protocol.access import from_nodes, from_processes
from zfabric.protocol.ids import LOCAL_SCHEDULER, MEMBER
from zfabric.protocol.messages.rows import Rows

PROTOCOL_VERSION = 3


@from_processes(LOCAL_SCHEDULER)
class Register(NamedTuple):
    """client, transfer agent -> local scheduler. The first message on every link.

    ``kind`` is "driver", "worker", "tool" or "agent" (the transfer agent). ``job`` is empty for a new job. ``name`` is a worker's start
    token, or a driver's name. ``control`` is the incarnation of the control socket, or empty. ``started``, in clock ticks, guards ``pid``
    against reuse. Until ``Ready`` the process sends what it holds: ``Export``, ``OfferResults``, ``Hold``, ``RunningTasks``, ``Completed``,
    ``Submit``.
    """

    protocol: int
    kind: str
    pid: int
    started: int
    job: bytes
    name: bytes
    control: bytes
    namespace: str
    path: str


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class Ready(NamedTuple):
    """client, transfer agent, local scheduler of another node -> local scheduler. Registration is complete.

    The sender has sent all that it holds, and may be given tasks.
    """


class Welcome(NamedTuple):
    """local scheduler -> client, transfer agent. The process is registered.

    ``settings`` are the (name, value) pairs of ``config`` that it needs. ``arena`` is the path of the node's arena (empty: none),
    ``arena_size`` its size in bytes.
    """

    protocol: int
    job: bytes
    node: bytes
    arena: str
    arena_size: int
    settings: Rows


@from_nodes(MEMBER)
class Refused(NamedTuple):
    """local scheduler, object store -> client, transfer agent; registry -> member. A message was refused.

    ``kind`` names an exception of ``zfabric.exceptions``, ``text`` is the reason. Every machine may answer so.
    """

    kind: str
    text: str


class RegisterAgain(NamedTuple):
    """local scheduler -> client. The node's daemon has restarted and listens at ``path``; register again."""

    path: str


@from_processes(LOCAL_SCHEDULER)
class Goodbye(NamedTuple):
    """driver, tool -> local scheduler. The process is done, and its job ends.

    ``Farewell`` is the answer, once the job's log lines are sent.
    """


class Farewell(NamedTuple):
    """local scheduler -> driver. The job has ended, and its tombstone is durable. ``reason`` is empty if the driver requested the end."""

    reason: str
