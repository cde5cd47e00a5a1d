"""Registration: process -> local scheduler."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows

PROTOCOL_VERSION = 1


class Register(NamedTuple):
    """client -> local scheduler. First on every link: who I am. ``kind`` is "driver", "worker" or "tool".

    ``job`` is empty for a driver that wants a new job. ``name`` is the token a worker was spawned with, or what a driver
    calls itself. ``control`` is the incarnation of the process's control socket (empty: it has none). ``started`` is the process's
    start time in clock ticks, which guards its pid against reuse. Between this and ``Ready`` the process repeats what it
    holds: ``Export``, ``OfferResults``, ``Hold``, ``RunningTasks``, ``Completed``, ``Submit``.
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


class Ready(NamedTuple):
    """client -> local scheduler. All I hold has been said; dispatch may count on me."""


class Welcome(NamedTuple):
    """local scheduler -> client. You are registered. ``settings`` are (name, value) pairs a client needs (see ``config``).

    ``arena`` is the path the node's arena can be opened under (empty: none), with its size in bytes.
    """

    protocol: int
    job: bytes
    node: bytes
    arena: str
    arena_size: int
    settings: Rows


class Refused(NamedTuple):
    """any -> any. What you said does not fit: ``kind`` names an exception of ``zfabric.exceptions``, ``text`` says why."""

    kind: str
    text: str


class RegisterAgain(NamedTuple):
    """local scheduler -> client. I am a new incarnation of your node's daemon at ``path``; register again."""

    path: str


class Goodbye(NamedTuple):
    """driver, tool -> local scheduler. I am done; my job ends. Answered with ``Farewell`` once its log lines are out."""


class Farewell(NamedTuple):
    """local scheduler -> driver. Your job has ended, its tombstone is durable; ``reason`` is empty on request."""

    reason: str
