"""Records of placement groups at home, at nodes with tasks for them, and of bundles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zfabric.machines.common.resources import ResourcePool, covers
from zfabric.protocol import messages as m
from zfabric.protocol.messages import CREATED, PENDING_GROUP
from zfabric.protocol.options import Demand, GroupTerm, Strategy


class GroupRecord:
    """A placement group at its home, which decides."""

    __slots__ = (
        "bundles",
        "detached",
        "id",
        "leaving",
        "name",
        "namespace",
        "places",
        "policy",
        "reservation",
        "selectors",
        "state",
        "steps",
        "target",
        "warned",
        "watchers",
    )

    def __init__(
        self,
        identifier: bytes,
        bundles: tuple[Demand, ...],
        policy: str,
        name: str,
        namespace: str,
        detached: bool,
        selectors: tuple[Strategy, ...] = (),
    ) -> None:
        self.id = identifier
        self.bundles = bundles
        self.policy = policy
        self.name = name
        self.namespace = namespace
        self.detached = detached
        self.selectors = selectors
        """Labels of each bundle's node, as rows of a strategy, or empty."""
        self.state = PENDING_GROUP
        self.places = [b""] * len(bundles)
        """Nodes of bundles; empty until reserved for good."""
        self.leaving: set[tuple[int, bytes]] = set()
        """Bundles (index, node) of drained nodes, where what runs ends."""
        self.target: dict[int, bytes] = {}
        """Where missing bundles are being reserved."""
        self.steps: list[bytes] = []
        """Nodes of ``target`` to ask, the next one last."""
        self.reservation = 0
        self.watchers: set[bytes] = set()
        self.warned = False

    @property
    def missing(self) -> dict[int, Demand]:
        """Bundles without a place."""
        return {index: self.bundles[index] for index, place in enumerate(self.places) if not place}


def excess(bundle: Iterable[tuple[str, int]], demand: Demand) -> int:
    """Resources of a bundle that ``demand`` does not name. Tasks prefer few."""
    named = {name for name, _ in demand}
    return sum(1 for name, amount in bundle if amount and name not in named)


class KnownGroup:
    """A group at a node with tasks for it."""

    __slots__ = ("bundles", "dealt", "places", "reason", "state")

    def __init__(self, state: m.GroupState, dealt: dict[Demand, int]) -> None:
        self.dealt = dealt
        """Tasks dealt out, by demand: places rotate."""
        self.state = state.state
        self.bundles: tuple[Demand, ...] = tuple(demand for demand, _ in state.rows)
        self.places: tuple[bytes, ...] = tuple(place for _, place in state.rows)
        self.reason = state.reason

    def able(self, term: GroupTerm, demand: Demand) -> list[int]:
        """Bundles that the term allows and that cover the demand."""
        named = range(len(self.bundles)) if term.bundle < 0 else range(term.bundle, min(term.bundle + 1, len(self.bundles)))
        return [index for index in named if covers(dict(self.bundles[index]), demand)]

    def all_at(self, node: bytes) -> bool:
        """Whether the whole group is at this node."""
        return self.state == CREATED and all(place == node for place in self.places)


class Bundle:
    """A bundle at its node, reserved or about to be."""

    __slots__ = ("committed", "demand", "detached", "durable", "ending", "group", "home", "index", "pool", "reservation")

    def __init__(self, group: bytes, index: int, demand: Demand, home: bytes, reservation: int, detached: bool) -> None:
        self.group = group
        self.index = index
        self.demand = demand
        self.home = home
        self.reservation = reservation
        self.detached = detached
        self.pool: ResourcePool | None = None
        """Its resources, once no task uses them."""
        self.durable = False
        """Whether its row is written: its home may count on it."""
        self.committed = False
        """Whether the whole group is reserved, so that tasks may run."""
        self.ending = False
        """Whether it is freed after its last process."""


class GroupPool:
    """A group's bundles here as one pool; each demand is met by one bundle. A negative ``index`` means all."""

    def __init__(self, bundles: Mapping[bytes, Mapping[int, Bundle]], group: bytes, index: int) -> None:
        self._bundles = bundles
        self._group = group
        self._index = index

    def _found(self) -> list[Bundle]:
        bundles = self._bundles.get(self._group, {})
        return [each for index, each in bundles.items() if self._index in (index, -1, -2) and not each.ending]

    def _pools(self) -> list[ResourcePool]:
        return [each.pool for each in self._found() if each.pool is not None]

    def fits(self, demand: Demand) -> bool:
        """Whether a bundle of a whole group has this now."""
        return any(each.committed and each.pool is not None and each.pool.fits(demand) for each in self._found())

    def fits_total(self, demand: Demand) -> bool:
        """True: the home of the task has checked it."""
        return True

    def available(self) -> Demand:
        """What is free in the roomiest bundle."""
        return max((pool.available() for pool in self._pools()), default=())

    def acquire(self, demand: Demand) -> ResourcePool:
        """Acquire, and return the pool for the release. ``fits`` holds, or the daemon recovers."""
        pools = self._pools()
        fitting = [pool for pool in pools if pool.fits(demand)] or [pool for pool in pools if covers(pool.total, demand)]
        return min(fitting or pools or [ResourcePool(())], key=lambda pool: excess(pool.total.items(), demand)).acquire(demand)

    def has(self, pool: ResourcePool) -> bool:
        """Whether ``pool`` is that of one of its bundles."""
        return any(each is pool for each in self._pools())
