"""Registration: process -> local scheduler."""

from typing import NamedTuple

from zfabric.protocol.access import from_nodes, from_processes
from zfabric.protocol.ids import LOCAL_SCHEDULER, MEMBER
from zfabric.protocol.messages.rows import Rows

PROTOCOL_VERSION = 1


@from_processes(LOCAL_SCHEDULER)
class Register(NamedTuple):
    """client -> local scheduler. The first message on every link.

    ``kind`` is "driver", "worker", "tool" or "agent" (the transfer agent). ``job`` is empty for a driver that wants a new job. ``name`` is
    the token with which a worker was started, or the name that a driver gives itself. ``control`` is the incarnation of the process's
    control socket, empty if it has none. ``started`` is the process's start time in clock ticks, which guards its pid against reuse.
    Between this and ``Ready`` the process sends what it holds: ``Export``, ``OfferResults``, ``Hold``, ``RunningTasks``, ``Completed``,
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
    """client -> local scheduler. Registration is complete: the process has sent all that it holds, and may be given tasks."""


class Welcome(NamedTuple):
    """local scheduler -> client. The process is registered. ``settings`` are the (name, value) pairs of ``config`` that a client needs.

    ``arena`` is the path under which the node's arena can be opened (empty: there is none), ``arena_size`` its size in bytes.
    """

    protocol: int
    job: bytes
    node: bytes
    arena: str
    arena_size: int
    settings: Rows


@from_nodes(MEMBER)
class Refused(NamedTuple):
    """any -> any. A message was refused: ``kind`` names an exception of ``zfabric.exceptions``, ``text`` says why."""

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
    """local scheduler -> driver. The job has ended, and its tombstone is durable. ``reason`` is empty if the driver asked for the end."""

    reason: str
