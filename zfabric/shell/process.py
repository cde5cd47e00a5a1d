"""What a driver's or worker's process sends, in which order, and what it accepts from whom.

A frame has one flush's messages for one receiver (``batches``): of user code, then ends of tasks, then releases. Before a task's refs and
places are released, the scheduler must have the task's end (or that it was taken back), and the refs in its value. The daemon may send
anything, other processes of the node only ``FROM_PEERS`` (``zfabric.protocol.access``).
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
"""(sender's role, message)."""
PEERS = (ACTOR, CONTROL, WORKER)
"""Other processes' roles; all else goes to the daemon that the client has joined."""
FRAME_ROWS = 2048
"""Rows of a full frame: one turn of its receiver, within a few milliseconds."""


# -- sending --


def client_sends(client: Client, daemon: bytes) -> list[Outgoing]:
    """Take all messages of a client."""
    return _of_client(client.take_effects(0.0), daemon)


def worker_sends(client: Client, worker: Worker, daemon: bytes, release: Callable[[bytes], None]) -> list[Outgoing]:
    """Take all messages of a worker's process, in the order of a frame.

    ``release`` drops the refs inside a held outcome that is sent now.
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
    """Group into (incarnation, envelopes), one per frame; many rows make several rounds."""
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
    """A worker's unacknowledged reports, for the next daemon."""
    return [message for _, role, message in envelopes if role == WORKER and type(message) in REPORTS]


# -- receiving --


def peers_first(frames: Iterable[tuple[bytes, bytes]], is_peer: Callable[[bytes], bool]) -> list[tuple[bytes, bytes]]:
    """Order (sender, frame) pairs: an actor's last outcomes precede the notice of its end."""
    return sorted(frames, key=lambda frame: not is_peer(frame[0]))


def client_takes(client: Client, sender: bytes, message: m.Message) -> bool:
    """Whether a client accepts this from a process: outcomes of tasks only from workers of direct submission."""
    if type(message) is m.Results:
        return sender in client.direct.allowed
    return type(message) in FROM_PEERS[CLIENT]


def worker_takes(worker: Worker, sender: bytes, message: m.Message) -> bool:
    """Whether a worker accepts this from a process: tasks only from drivers that the scheduler has named."""
    if type(message) is m.SubmitDirect:
        return sender in worker.drivers
    return type(message) in FROM_PEERS[ACTOR]


def admits_caller(worker: Worker, sender: bytes, hosts_actors: bool) -> bool:
    """Whether an unregistered process may send: any living one may call an actor here."""
    return (hosts_actors and sender not in worker.mailbox.gone) or sender in worker.drivers


def control_step(client: Client, worker: Worker, now: float, source: Address, message: Any) -> None:
    """Handle a control message of the daemon, or of a caller that stops its call."""
    if type(message) is m.RecallPins or type(message) is m.RecallGrant:
        client.step(now, source, message)
    else:
        worker.step(now, source, message)
