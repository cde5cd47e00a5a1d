"""The network of a simulated node: frames that are lost, late, doubled and overtaken, and the links that make up for it.

A frame is bytes, encoded and decoded by the production codec, so that nothing is ever shared between two processes. What a dead
process had sent may still arrive; what is for a dead process does not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from zfabric.config import Config
from zfabric.machines.common.link import Link
from zfabric.protocol.codec import decode, encode, encode_body
from zfabric.protocol.messages import Envelope


class Faults(NamedTuple):
    """Everything that goes wrong in one world. Chances are per frame; counts are per world; times are virtual seconds."""

    loss: float = 0.0
    duplication: float = 0.0
    late: float = 0.0
    """Chance that a frame takes a hundred times as long as others, so that many overtake it."""
    delay: float = 0.0002
    """Mean time a frame takes."""
    jitter: bool = True
    """Whether that time varies (scenarios have it fixed)."""
    worker_crashes: int = 0
    daemon_crashes: int = 0
    driver_crash: bool = False
    stalls: int = 0
    """Times that some process stops for a while and goes on."""
    pressure: int = 0
    """Times that the node is short of memory."""
    window: float = 0.4
    """Seconds in which crashes, stalls and lossy links happen; after that the world heals."""
    slow_commits: bool = False
    """Whether commits take time (``durability`` "power"), and those under way are lost in a crash."""
    full_disk: int = 0
    """Times that the control store can write nothing for a while."""
    start_failures: int = 0
    """Workers that die before they register."""


class Network:
    """Who can be reached under which incarnation, and what becomes of frames."""

    def __init__(
        self,
        after: Callable[[float, Callable[[], object]], None],
        fail: Callable[[str], NoReturn],
        frame_bytes_max: int,
        faults: Faults,
        seed: str,
    ) -> None:
        self._after = after
        self._fail = fail
        self._frame_bytes_max = frame_bytes_max
        self.faults = faults
        self.lossy = True
        self.in_flight = 0
        self.frames = 0
        self.cut: Counter[str] = Counter()
        """Messages that no frame carried whole, by name: how often."""
        self._loss = random.Random(seed + "/loss")
        self._delay = random.Random(seed + "/delay")
        self._receivers: dict[bytes, Callable[[bytes, bytes], None]] = {}

    def attach(self, incarnation: bytes, receive: Callable[[bytes, bytes], None]) -> None:
        """``receive(sender, frame)`` is called with what arrives for ``incarnation``."""
        self._receivers[incarnation] = receive

    def detach(self, incarnation: bytes) -> None:
        """The process is gone: what is on its way to it is lost."""
        self._receivers.pop(incarnation, None)

    def send(self, source: bytes, target: bytes, frame: bytes) -> None:
        """Pass on a frame, as well as the faults allow. The world fails if its receiver would refuse it for its size."""
        self.frames += 1
        if len(frame) > self._frame_bytes_max:
            self._fail(f"a frame of {len(frame)} bytes, where {self._frame_bytes_max} are accepted")
        faults = self.faults
        copies = 1
        if self.lossy:
            chance = self._loss.random()
            if chance < faults.loss:
                copies = 0
            elif chance < faults.loss + faults.duplication:
                copies = 2
        for _ in range(copies):
            delay = faults.delay
            if faults.jitter:
                delay *= 0.5 + self._delay.random()
                if self.lossy and faults.late and self._delay.random() < faults.late:
                    delay *= 100 * self._delay.random()
            self.in_flight += 1
            self._after(delay, lambda: self._arrive(source, target, frame))

    def _arrive(self, source: bytes, target: bytes, frame: bytes) -> None:
        self.in_flight -= 1
        receive = self._receivers.get(target)
        if receive is not None:
            receive(source, frame)


class SimTransport:
    """The links of one incarnation."""

    def __init__(self, network: Network, incarnation: bytes, config: Config) -> None:
        self.network = network
        self.incarnation = incarnation
        self.config = config
        self.peers: dict[bytes, Link] = {}

    def link(self, incarnation: bytes) -> Link:
        """The link to a peer, made on first use."""
        link = self.peers.get(incarnation)
        if link is None:
            link = self.peers[incarnation] = Link(self.config.link_window, self.config.link_repeat)
        return link

    def send(self, incarnation: bytes, envelopes: list[Envelope], now: float) -> None:
        """Send these to one peer, as few frames as they fit into."""
        link = self.link(incarnation)
        frames = link.pack(envelopes, now, self.config.frame_bytes_max)
        if len(frames) > 1:
            cut = [each[2] for each in envelopes if len(encode(0, 0, [each])) > self.config.frame_bytes_max]
            self.network.cut.update({type(message).__name__ for message in cut})
        for frame in frames:
            self.network.send(self.incarnation, incarnation, frame)

    def accept(self, sender: bytes, frame: bytes, now: float) -> list[Envelope]:
        """Pass a frame through its link: what may be delivered now."""
        sequence, acknowledged, body = decode(frame)
        ready = self.link(sender).receive(sequence, acknowledged, body, now)
        return [envelope for batch in ready for envelope in batch]

    def tick(self, now: float) -> None:
        """Repeat and acknowledge what is due."""
        for incarnation, link in list(self.peers.items()):
            for sequence, body in link.due(now):
                self.network.send(self.incarnation, incarnation, encode_body(sequence, link.received, body))

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        return min((due for link in self.peers.values() if (due := link.next_deadline()) is not None), default=None)

    @property
    def settled(self) -> bool:
        """Whether everything said was acknowledged."""
        return not any(link.unacknowledged() for link in self.peers.values())

    def forget(self, incarnation: bytes) -> list[Envelope]:
        """A peer is gone; what it had not acknowledged comes back."""
        link = self.peers.pop(incarnation, None)
        return link.unacknowledged() if link is not None else []
