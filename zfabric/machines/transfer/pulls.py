"""The reader's side: values that this node copies from others (decision 0032).

A pull reserves room for the whole value, then makes *requests*, one per source. The first answered by a chunk goes on; the others are
stopped. Chunks are accepted in order, under each token used lately, so that chunks under way when a request is repeated are not lost. After
silence another source is asked, if possible. Nothing ends by the clock: the registry declares sources dead (``NodeTable``).

All chunks under way from a source are bounded (``transfer_credit``). Each request may have at least one, so that it can be served once it
is first at its source.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from zfabric.config import CHUNK_BYTES, Config
from zfabric.machines.common.extents import HEADER_BYTES
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TRANSFER_AGENT, Address, short
from zfabric.protocol.machine import InvariantViolation

WAITING_MAX = 100_000
"""Most pulls that wait for a slot; further ones are refused."""
TOKENS_MAX = 8
"""Most tokens of a pull with accepted chunks."""
PAUSE_FIRST = 1 / 32
"""First pause of a pull without a source, in units of ``transfer_patience``, the longest."""
FAILED_MAX = 1000
"""Remembered pulls without a source."""
PATIENCE_MOST = 16
"""Longest time between repeats, in units of ``transfer_patience``."""


class Request:
    """A source asked under this token from ``start`` on; what has come since, and what may (``limit``)."""

    __slots__ = ("due", "limit", "pause", "pull", "received", "source", "start", "token")

    def __init__(self, token: int, pull: PullRecord, source: bytes, limit: int, due: float, pause: float) -> None:
        self.token = token
        self.pull = pull
        self.source = source
        self.start = self.received = pull.position
        self.limit = limit
        self.pause = pause
        self.due = due

    @property
    def outstanding(self) -> int:
        """Chunks perhaps under way."""
        return -(-(self.limit - self.received) // CHUNK_BYTES)


class PullRecord:
    """One value: all before ``position`` is here. ``room`` is the reservation's token until ``offset`` is known."""

    __slots__ = ("next_source", "object_id", "offset", "position", "reasons", "requests", "room", "size", "sources", "tokens")

    def __init__(self, object_id: bytes, size: int, sources: tuple[bytes, ...]) -> None:
        self.object_id = object_id
        self.size = size
        self.sources = list(dict.fromkeys(sources))
        self.next_source = 0
        self.position = 0
        self.room = 0
        self.offset: int | None = None
        self.requests: dict[bytes, Request] = {}
        """The newest request to each source that has not refused."""
        self.tokens: deque[Request] = deque(maxlen=TOKENS_MAX)
        """Requests whose chunks are accepted."""
        self.reasons: dict[bytes, str] = {}


class Pulls:
    """Pulls under way or waiting for a slot."""

    def __init__(
        self,
        config: Config,
        first_token: int,
        counts: Counter[str],
        is_member: Callable[[bytes], bool],
        tell_scheduler: Callable[[m.Message], None],
        tell_store: Callable[[m.Message], None],
        perform: Callable[[e.Effect], None],
    ) -> None:
        self._config = config
        self._next_token = first_token
        self._counts = counts
        self._is_member = is_member
        self._tell_scheduler = tell_scheduler
        self._tell_store = tell_store
        self._perform = perform
        self._failed: dict[bytes, float] = {}
        """Pauses before pulls that failed without a source, newest last."""
        self._paused: dict[bytes, tuple[float, PullRecord]] = {}
        """Such pulls, and when their pauses end."""
        self._waiting: dict[bytes, PullRecord] = {}
        self._active: dict[bytes, PullRecord] = {}
        self._sealing: dict[bytes, PullRecord] = {}
        """Pulls with every byte."""
        self._rooms: dict[int, PullRecord] = {}
        self._unrequested: dict[bytes, PullRecord] = {}
        """Pulls with room and no request, for want of credit or a source."""
        self._hungry: dict[int, Request] = {}
        """Requests that received something, and may get more credit."""
        self._unanswered: dict[bytes, float] = {}
        """Since when sources are silent, or were reported."""
        self._received: dict[int, Request] = {}
        """Requests by token, while their chunks are accepted."""

    def __len__(self) -> int:
        return len(self._active) + len(self._waiting) + len(self._paused) + len(self._sealing)

    @property
    def under_way(self) -> int:
        """Values on their way here."""
        return len(self._active)

    def _token(self) -> int:
        self._next_token += 1
        return self._next_token

    # -- the scheduler --

    def on_pull(self, now: float, source: Address, message: m.Pull) -> None:
        """Begin to copy a value, or queue it."""
        known = self._find(message.object_id)
        if known is not None:
            self._set_sources(known, message.sources, now)
        elif message.object_id in self._sealing:
            pass  # Its answer follows.
        elif len(self._waiting) + len(self._paused) >= WAITING_MAX:
            self._tell_scheduler(m.PullFailed(message.object_id, "busy", f"this node copies {WAITING_MAX} other values already"))
        else:
            pull = PullRecord(*message)
            self._check_members(pull)
            pause = self._failed.get(pull.object_id)
            if pause is None:
                self._waiting[pull.object_id] = pull
            else:
                self._paused[pull.object_id] = (now + pause, pull)

    def _set_sources(self, pull: PullRecord, sources: tuple[bytes, ...], now: float) -> None:
        pull.sources = list(dict.fromkeys(sources))
        pull.reasons = {}
        self._check_members(pull)
        for request in list(pull.requests.values()):
            if request.source not in pull.sources:
                self._end(request, stop=True)
        if pull.offset is not None:
            self._unrequested[pull.object_id] = pull

    def _check_members(self, pull: PullRecord) -> None:
        """Ask no node that the table lacks: it is dead, or its address unknown yet."""
        for node in [each for each in pull.sources if not self._is_member(each)]:
            self._without(pull, node, "it is not in the table of nodes")

    def on_stop_pull(self, now: float, source: Address, message: m.StopPull) -> None:
        """Abandon a copy, and return its room."""
        known = self._find(message.object_id)
        if known is not None:
            self._counts["pulls_stopped"] += 1
            self._drop(known)

    def _find(self, object_id: bytes) -> PullRecord | None:
        paused = self._paused.get(object_id)
        return paused[1] if paused is not None else self._active.get(object_id) or self._waiting.get(object_id)

    def _fail(self, pull: PullRecord, kind: str, text: str) -> None:
        self._counts["pulls_failed"] += 1
        self._drop(pull)
        self._tell_scheduler(m.PullFailed(pull.object_id, kind, text))

    def _drop(self, pull: PullRecord) -> None:
        self._forget(pull, complete=False)
        if pull.offset is not None:
            self._perform(e.SealValue(pull.object_id, pull.offset, -1))
            self._tell_store(m.ReturnGrant(pull.offset - HEADER_BYTES, 0))

    def _forget(self, pull: PullRecord, complete: bool) -> None:
        for request in list(pull.requests.values()):
            self._end(request, stop=True, complete=complete)
        for old in pull.tokens:
            self._received.pop(old.token, None)
        self._rooms.pop(pull.room, None)  # Room that is granted later is returned.
        self._paused.pop(pull.object_id, None)
        for table in (self._waiting, self._active, self._unrequested):
            table.pop(pull.object_id, None)

    # -- room --

    def _begin(self, now: float) -> None:
        while self._waiting and len(self._active) < max(1, self._config.transfer_pulls):
            pull = self._waiting.pop(next(iter(self._waiting)))
            if not pull.sources:
                self._fail_without_source(pull)
                continue
            self._active[pull.object_id] = pull
            pull.room = self._token()
            self._rooms[pull.room] = pull
            self._tell_store(m.Reserve(pull.room, pull.size, 0, self._config.put_patience))

    def on_granted(self, now: float, source: Address, message: m.Granted) -> None:
        """Ask for the bytes of a value with room. Unwanted room is returned."""
        pull = self._rooms.pop(message.token, None)
        if pull is None:
            self._tell_store(m.ReturnGrant(message.offset, 0))
            return
        pull.offset = message.offset + HEADER_BYTES
        if pull.size:
            self._unrequested[pull.object_id] = pull
        else:
            self._complete(pull)

    def on_no_space(self, now: float, source: Address, message: m.NoSpace) -> None:
        """There is no room."""
        pull = self._rooms.pop(message.token, None)
        if pull is not None:
            self._fail(pull, message.kind, message.text)

    def on_value_sealed(self, now: float, source: Address, message: m.ValueSealed) -> None:
        """A value is sealed, or could not be written."""
        pull = self._sealing.pop(message.object_id)
        assert pull.offset is not None
        if message.error:
            self._tell_store(m.ReturnGrant(pull.offset - HEADER_BYTES, 0))
            self._counts["pulls_failed"] += 1
            self._tell_scheduler(m.PullFailed(pull.object_id, "disk", message.error))
        else:
            self._failed.pop(pull.object_id, None)
            self._counts["pulled"] += 1
            self._counts["bytes_pulled"] += pull.size
            self._tell_scheduler(m.Pulled(pull.object_id, pull.offset, pull.size))

    # -- requests --

    def _credit(self, source: bytes) -> int:
        used = sum(pull.requests[source].outstanding for pull in self._active.values() if source in pull.requests)
        return max(0, self._config.transfer_credit - used)

    def _request(self, pull: PullRecord, source: bytes, now: float, pause: float = 0.0) -> bool:
        """Ask for what is missing; False if the source may send nothing more at present."""
        credit = self._credit(source)
        if not credit:
            return False
        limit = min(pull.size, pull.position + credit * CHUNK_BYTES)
        pause = pause or self._config.transfer_patience
        request = Request(self._token(), pull, source, limit, now + pause, pause)
        pull.requests[source] = request
        if len(pull.tokens) == TOKENS_MAX:
            self._received.pop(pull.tokens[0].token, None)
        pull.tokens.append(request)
        self._received[request.token] = request
        self._want(request)
        return True

    def _want(self, request: Request) -> None:
        pull = request.pull
        self._tell(request.source, m.Want(request.token, pull.object_id, pull.size, request.received, request.limit))

    def _tell(self, node: bytes, message: m.Message) -> None:
        self._perform(e.Send(TRANSFER_AGENT + node, message))

    def _end(self, request: Request, stop: bool, complete: bool = False) -> None:
        request.pull.requests.pop(request.source, None)
        self._hungry.pop(request.token, None)
        if stop:
            self._tell(request.source, m.StopWant(request.token, complete))

    def _unasked(self, pull: PullRecord) -> Iterator[bytes]:
        count = len(pull.sources)
        for step in range(count):
            source = pull.sources[(pull.next_source + step) % count]
            if source not in pull.requests:
                yield source

    def end_of_turn(self, now: float) -> None:
        """Begin pulls, make requests, extend credit.

        Receiving requests come first: requests queued at a source could otherwise have all credit, behind other nodes.
        """
        self._begin(now)
        spent: set[bytes] = set()
        for request in list(self._hungry.values()):
            if not request.outstanding:
                self._extend(request, 1)
        for pull in list(self._unrequested.values()):
            if pull.sources and not pull.requests and spent.issuperset(pull.sources):
                continue
            if not pull.sources:
                self._fail_without_source(pull)
            elif pull.requests or any(self._request(pull, source, now) for source in self._unasked(pull)):
                del self._unrequested[pull.object_id]
            else:
                spent.update(pull.sources)
        for request in list(self._hungry.values()):
            self._extend(request, self._credit(request.source))

    def _fail_without_source(self, pull: PullRecord) -> None:
        """Fail a pull. It may begin again after a pause that doubles: its home must find a source."""
        patience = self._config.transfer_patience
        self._failed[pull.object_id] = min(2 * self._failed.pop(pull.object_id, PAUSE_FIRST * patience / 2), patience)
        if len(self._failed) > FAILED_MAX:
            del self._failed[next(iter(self._failed))]
        why = "; ".join(f"node {node.hex()}: {reason}" for node, reason in pull.reasons.items())
        self._fail(pull, "lost", f"no node has a copy of {short(pull.object_id)}" + (f" ({why})" if why else ""))

    def _extend(self, request: Request, chunks: int) -> None:
        limit = min(request.pull.size, request.limit + min(chunks, self._credit(request.source)) * CHUNK_BYTES)
        if limit > request.limit:
            request.limit = limit
            self._tell(request.source, m.Credit(request.token, limit))
        if request.outstanding:
            del self._hungry[request.token]

    # -- sources --

    def _from(self, source: Address, token: int) -> Request | None:
        """The request of an answer, if its source answers."""
        request = self._received.get(token)
        if request is None or request.source != source[1:]:
            self._counts["late"] += 1
            return None
        self._unanswered.pop(source[1:], None)
        return request

    def on_chunk(self, now: float, source: Address, message: m.Chunk) -> None:
        """Write bytes, if they are the next ones."""
        request = self._from(source, message.token)
        if request is None:
            return
        pull, newest = request.pull, request.pull.requests.get(request.source)
        if message.position % CHUNK_BYTES or message.size != min(CHUNK_BYTES, pull.size - message.position) or pull.offset is None:
            self._counts["refused"] += 1
            return
        if newest is request:
            request.due, request.pause = now + self._config.transfer_patience, self._config.transfer_patience
        if message.position != pull.position:
            self._counts["chunks_dropped"] += 1
            if message.position > pull.position and newest is request:
                self._counts["gaps"] += 1
                self._end(request, stop=False)
                if not self._request(pull, request.source, now):
                    self._unrequested[pull.object_id] = pull
            return
        self._perform(e.WriteChunk(source, message.token, pull.object_id, pull.offset, message.position, message.size))
        pull.position += message.size
        if pull.position == pull.size:
            if newest is request and pull.size <= CHUNK_BYTES:
                self._end(request, stop=False)  # The source knows: it has sent the only chunk.
            self._complete(pull)
            return
        for other in [each for each in pull.requests.values() if each.source != request.source]:
            self._end(other, stop=True)
        if newest is not None:
            newest.received = min(max(newest.received, pull.position), newest.limit)
            self._hungry[newest.token] = newest
        else:  # It was given up too early.
            if request.source in pull.sources:
                pull.next_source = pull.sources.index(request.source)
            self._unrequested[pull.object_id] = pull

    def _complete(self, pull: PullRecord) -> None:
        assert pull.offset is not None
        self._forget(pull, complete=True)
        self._sealing[pull.object_id] = pull
        self._perform(e.SealValue(pull.object_id, pull.offset, pull.size))

    def on_queued(self, now: float, source: Address, message: m.Queued) -> None:
        """A source serves others first: ask another, too."""
        request = self._from(source, message.token)
        if request is None or request.pull.requests.get(request.source) is not request:
            return
        request.due = now + request.pause
        self._ask_another(request.pull, now)

    def _ask_another(self, pull: PullRecord, now: float) -> bool:
        return any(self._request(pull, source, now) for source in self._unasked(pull))

    def on_redirect(self, now: float, source: Address, message: m.Redirect) -> None:
        """A source names another, and does not serve this request."""
        request = self._from(source, message.token)
        if request is None or request.pull.requests.get(request.source) is not request:
            return
        pull = request.pull
        self._counts["redirected"] += 1
        self._end(request, stop=False)
        if message.node not in pull.sources:
            pull.sources.append(message.node)
        pull.next_source = pull.sources.index(message.node)
        self._unrequested[pull.object_id] = pull

    def on_unavailable(self, now: float, source: Address, message: m.Unavailable) -> None:
        """A source has no copy."""
        request = self._from(source, message.token)
        if request is not None:
            self._without(request.pull, request.source, message.reason)

    def _without(self, pull: PullRecord, node: bytes, reason: str) -> None:
        """Ask this node no more, unless named again."""
        request = pull.requests.get(node)
        if request is not None:
            self._end(request, stop=False)
        if node in pull.sources:
            pull.sources.remove(node)
            pull.reasons[node] = reason
        if pull.offset is not None and not pull.requests:
            self._unrequested[pull.object_id] = pull

    def node_died(self, node: bytes, now: float) -> None:
        """Drop a dead node as a source."""
        paused = (pull for _, pull in self._paused.values())
        for pull in [*self._active.values(), *self._waiting.values(), *paused]:
            if node in pull.sources or node in pull.requests:
                self._without(pull, node, "it is dead")

    # -- time --

    def tick(self, now: float) -> None:
        """Repeat unanswered requests; begin pulls after their pause."""
        for object_id, (due, pull) in list(self._paused.items()):
            if due <= now:
                del self._paused[object_id]
                self._waiting[object_id] = pull
        for pull in list(self._active.values()):
            for request in [each for each in pull.requests.values() if each.due <= now]:
                self._silent(pull, request, now)
        self._complain(now)

    def _complain(self, now: float) -> None:
        """Report sources silent for ``pair_patience``."""
        if not self._unanswered:
            return
        asked = {request.source for pull in self._active.values() for request in pull.requests.values() if request.outstanding}
        self._unanswered = {source: since for source, since in self._unanswered.items() if source in asked}
        late = tuple(source for source, since in self._unanswered.items() if now >= since + self._config.pair_patience)
        if late:
            self._unanswered.update(dict.fromkeys(late, now))
            self._tell_scheduler(m.PeersSilent(late))

    def _silent(self, pull: PullRecord, request: Request, now: float) -> None:
        """Ask another source, else the same again, under a new token if this one has received something."""
        request.pause = min(2 * request.pause, PATIENCE_MOST * self._config.transfer_patience)
        request.due = now + request.pause
        if not request.outstanding:
            return  # It will have credit once chunks of other values have come.
        self._counts["stalls"] += 1
        self._unanswered.setdefault(request.source, now)
        pull.next_source += 1
        asked = self._ask_another(pull, now)
        if request.received == request.start:
            self._want(request)
        else:
            self._end(request, stop=asked)
            if not asked and not self._request(pull, request.source, now, request.pause):
                self._unrequested[pull.object_id] = pull

    def next_deadline(self) -> float | None:
        """When a request is repeated, or a pause ends."""
        requests = [request.due for pull in self._active.values() for request in pull.requests.values()]
        complaints = [since + self._config.pair_patience for since in self._unanswered.values()]
        return min([*requests, *complaints, *(due for due, _ in self._paused.values())], default=None)

    def check_invariants(self) -> None:
        """Check that credit is bounded, and each pull has what it needs."""
        used: Counter[bytes] = Counter()
        for pull in self._active.values():
            for source, request in pull.requests.items():
                if request.source != source or self._received.get(request.token) is not request:
                    raise InvariantViolation(f"no answer would be accepted to the request {request.token} of {short(pull.object_id)}")
                used[source] += request.outstanding
            if (pull.offset is None) != (pull.room in self._rooms):
                raise InvariantViolation(f"the pull of {short(pull.object_id)} has neither room nor a reservation, or both")
            if pull.offset is not None and not pull.requests and pull.object_id not in self._unrequested:
                raise InvariantViolation(f"nobody is asked for {short(pull.object_id)}")
        if used and max(used.values()) > self._config.transfer_credit:
            raise InvariantViolation(f"sources have credit for {used} chunks")
        if len(self._active) > max(1, self._config.transfer_pulls) or self._rooms.keys() - {pull.room for pull in self._active.values()}:
            raise InvariantViolation("there are more pulls than there may be, or room for none")
