"""What a driver's or a worker's process sends, in which order, and which messages it accepts from whom.

A frame has all messages of one flush for one receiver (``batches``). First come the messages of user code that ran in a task, then the end
of that task, then releases. The order matters. Before the process releases the refs and places that a task had, the scheduler must have
received that the task has ended or was taken back, and which refs its value contains.

Two kinds of peers send to a process: its daemon, which may send anything, and processes of the same node, which may send the messages in
``FROM_PEERS`` (``zfabric.protocol.access``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from zfabric.machines.client import Client
from zfabric.machines.worker import REPORTS, Worker
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_PEERS
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.ids import ACTOR, CLIENT, CONTROL, WORKER, Address
from zfabric.protocol.messages import Envelope

Outgoing = tuple[bytes, Send]
"""A message to be sent, with the role that sends it."""
PEERS = (ACTOR, CONTROL, WORKER)
"""Roles of other processes that a client sends to. All other messages go to the daemon, and only to the one that the client has joined."""
FRAME_ROWS = 2048
"""Rows after which a frame is full. Its receiver handles that many in one turn, within a few milliseconds."""


# -- sending --


def client_sends(client: Client, daemon: bytes) -> list[Outgoing]:
    """Take all messages that a client has to send."""
    return _of_client(client.take_effects(0.0), daemon)


def worker_sends(client: Client, worker: Worker, daemon: bytes, release: Callable[[bytes], None]) -> list[Outgoing]:
    """Take all messages that a worker's process has to send: of user code, then ends of tasks, then releases.

    ``release`` drops the refs inside an outcome that was held back and is sent now.
    """
    said, ends = client.take_before_releases() if client.has_unsent else (), worker.take_effects(0.0)
    while worker.mailbox.written:
        client.reservations.finished(worker.mailbox.written.pop())
    while worker.mailbox.dropped:
        client.reservations.abandon(worker.mailbox.dropped.pop())
    while worker.mailbox.released:
        release(worker.mailbox.released.pop())
    for identifier, place in worker.task_queue.returned_places:
        client.pins.add(identifier, place)
        client.pins.release_if_unused(identifier)
    worker.task_queue.returned_places.clear()
    sends = _of_client(said, daemon)
    sends += [(WORKER, effect) for effect in ends if type(effect) is Send and (effect.to[1:] == daemon or effect.to[:1] == CLIENT)]
    return sends + client_sends(client, daemon) if client.dropped or client.unviewed or client.has_unsent else sends


def _of_client(effects: Iterable[Effect], daemon: bytes) -> list[Outgoing]:
    return [(CLIENT, effect) for effect in effects if type(effect) is Send and (effect.to[1:] == daemon or effect.to[:1] in PEERS)]


def batches(sends: Sequence[Outgoing], rows_max: int = FRAME_ROWS) -> Iterable[tuple[bytes, list[Envelope]]]:
    """Group messages into (incarnation, envelopes), one pair per frame; many rows make several rounds."""
    if len(sends) == 1:
        role, (to, message) = sends[0]
        return [(to[1:], [(to[:1], role, message)])]
    full: list[tuple[bytes, list[Envelope]]] = []
    gathered: dict[bytes, list[Envelope]] = {}
    rows = 0
    for role, (to, message) in sends:
        gathered.setdefault(to[1:], []).append((to[:1], role, message))
        rows += len(message[0]) if message and type(message[0]) is tuple else 1
        if rows >= rows_max:
            full += gathered.items()
            gathered = {}
            rows = 0
    return [*full, *gathered.items()] if full else gathered.items()


def unacknowledged_reports(envelopes: Iterable[Envelope]) -> list[m.Message]:
    """A worker's reports that the daemon has not acknowledged: the next daemon must receive them."""
    return [message for _, role, message in envelopes if role == WORKER and type(message) in REPORTS]


# -- receiving --


def peers_first(frames: Iterable[tuple[bytes, bytes]], is_peer: Callable[[bytes], bool]) -> list[tuple[bytes, bytes]]:
    """Order (sender, frame) pairs: an actor's last outcomes come before the daemon's notice that it ended."""
    return sorted(frames, key=lambda frame: not is_peer(frame[0]))


def client_takes(client: Client, sender: bytes, message: m.Message) -> bool:
    """Whether a client accepts this message from another process. Outcomes of tasks come only from workers to which it submits directly."""
    if type(message) is m.Results:
        return sender in client.direct.allowed
    return type(message) in FROM_PEERS[CLIENT]


def worker_takes(worker: Worker, sender: bytes, message: m.Message) -> bool:
    """Whether a worker accepts this message from another process. Tasks come only from drivers that the scheduler has named."""
    if type(message) is m.SubmitDirect:
        return sender in worker.drivers
    return type(message) in FROM_PEERS[ACTOR]


def admits_caller(worker: Worker, sender: bytes, hosts_actors: bool) -> bool:
    """Whether this worker accepts messages of an unregistered process: any process may call an actor here until that process has exited."""
    return (hosts_actors and sender not in worker.mailbox.gone) or sender in worker.drivers


def control_step(client: Client, worker: Worker, now: float, source: Address, message: Any) -> None:
    """Handle a message to the control thread: from the daemon, or from a caller that stops its call."""
    if type(message) is m.RecallPins or type(message) is m.RecallGrant:
        client.step(now, source, message)
    else:
        worker.step(now, source, message)
