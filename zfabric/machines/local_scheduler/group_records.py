"""Records of placement groups: at a group's home, at each node with tasks for the group, and of each bundle at its node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zfabric.machines.common.resources import ResourcePool, covers
from zfabric.protocol import messages as m
from zfabric.protocol.messages import CREATED, PENDING_GROUP
from zfabric.protocol.options import Demand, GroupTerm, Strategy


class GroupRecord:
    """A placement group at its home, which decides about it."""

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
        """Labels required of each bundle's node, as rows of a strategy; empty if there are none."""
        self.state = PENDING_GROUP
        self.places = [b""] * len(bundles)
        """The node of each bundle; empty until it is reserved for good."""
        self.leaving: set[tuple[int, bytes]] = set()
        """Bundles (index, node) of drained nodes; what runs in them ends there."""
        self.target: dict[int, bytes] = {}
        """Where the missing bundles are being reserved."""
        self.steps: list[bytes] = []
        """Nodes of ``target`` still to be asked, the next one last."""
        self.reservation = 0
        """Number of the last attempt to reserve."""
        self.watchers: set[bytes] = set()
        self.warned = False
        """Whether its driver was warned that no node can hold it."""

    @property
    def missing(self) -> dict[int, Demand]:
        """Bundles without a place."""
        return {index: self.bundles[index] for index, place in enumerate(self.places) if not place}


def excess(bundle: Iterable[tuple[str, int]], demand: Demand) -> int:
    """How many resources a bundle has that ``demand`` does not name. Tasks prefer bundles with few."""
    named = {name for name, _ in demand}
    return sum(1 for name, amount in bundle if amount and name not in named)


class KnownGroup:
    """A group at a node with tasks for it, as in ``GroupState``."""

    __slots__ = ("bundles", "dealt", "places", "reason", "state")

    def __init__(self, state: m.GroupState, dealt: dict[Demand, int]) -> None:
        self.dealt = dealt
        """Tasks dealt out so far, by demand: places are used in rotation."""
        self.state = state.state
        self.bundles: tuple[Demand, ...] = tuple(demand for demand, _ in state.rows)
        self.places: tuple[bytes, ...] = tuple(place for _, place in state.rows)
        self.reason = state.reason

    def able(self, term: GroupTerm, demand: Demand) -> list[int]:
        """Indexes of the bundles that the term allows and that cover the demand."""
        named = range(len(self.bundles)) if term.bundle < 0 else range(term.bundle, min(term.bundle + 1, len(self.bundles)))
        return [index for index in named if covers(dict(self.bundles[index]), demand)]

    def all_at(self, node: bytes) -> bool:
        """Whether the group is whole and entirely at one node."""
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
        """Whether its row is written, so that its home may count on it."""
        self.committed = False
        """Whether the whole group is reserved, so that tasks may run in it."""
        self.ending = False
        """Whether it is freed once the last process in it has exited."""


class GroupPool:
    """The bundles of a group at this node as one pool, which meets each demand from one bundle. A negative ``index`` means all bundles."""

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
        """Whether a bundle of a whole group has this much now."""
        return any(each.committed and each.pool is not None and each.pool.fits(demand) for each in self._found())

    def fits_total(self, demand: Demand) -> bool:
        """True: the home of the task has checked it."""
        return True

    def available(self) -> Demand:
        """What is free in the bundle with most room, as in ``ResourcePool``."""
        return max((pool.available() for pool in self._pools()), default=())

    def acquire(self, demand: Demand) -> ResourcePool:
        """Acquire from a bundle; return the pool for the release. The caller has checked ``fits``, or the daemon recovers."""
        pools = self._pools()
        fitting = [pool for pool in pools if pool.fits(demand)] or [pool for pool in pools if covers(pool.total, demand)]
        return min(fitting or pools or [ResourcePool(())], key=lambda pool: excess(pool.total.items(), demand)).acquire(demand)

    def has(self, pool: ResourcePool) -> bool:
        """Whether ``pool`` is that of one of its bundles."""
        return any(each is pool for each in self._pools())
