"""Plans placement groups: pure functions of each node's room.

The policies are Ray's: PACK takes as few nodes as it finds, SPREAD as many; STRICT_PACK takes one node and STRICT_SPREAD a different one
per bundle, or they fail. The fewest nodes are a bin-packing problem, so PACK and SPREAD place the largest bundles first, and otherwise
search for any plan within a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from zfabric.machines.common.resources import covers
from zfabric.protocol.options import GROUP_POLICIES, Demand

PACK, SPREAD, STRICT_PACK, STRICT_SPREAD = GROUP_POLICIES
SEARCH_MAX = 20_000
"""Steps of a search: some 20 ms."""

Amounts = Mapping[str, int]
Plan = dict[int, bytes]


def plan(policy: str, bundles: Mapping[int, Demand], rooms: Mapping[bytes, Amounts], taken: Collection[bytes] = ()) -> Plan | None:
    """Choose a node for each bundle; None if the policy finds none. ``taken`` are the nodes of the group's other bundles.

    >>> plan("STRICT_SPREAD", {0: (("CPU", 1),), 1: (("CPU", 2),)}, {b"a": {"CPU": 2}, b"b": {"CPU": 1}})
    {0: b'b', 1: b'a'}
    """
    largest = _largest_first(bundles, rooms)
    if policy == STRICT_SPREAD:
        return _one_each(largest, bundles, {node: room for node, room in rooms.items() if node not in taken})
    if policy == STRICT_PACK:
        return _on_one(bundles, {node: room for node, room in rooms.items() if not taken or node in taken})
    if policy == PACK:
        return _on_one(bundles, rooms) or _on_few(largest, bundles, rooms, taken) or _search(largest, bundles, rooms)
    return _apart(largest, bundles, rooms, taken) or _search(largest, bundles, rooms)


def total_of(bundles: Collection[Demand]) -> Demand:
    """The sum of several demands."""
    total: Counter[str] = Counter()
    for bundle in bundles:
        total.update(dict(bundle))
    return tuple(sorted(total.items()))


def _largest_first(bundles: Mapping[int, Demand], rooms: Mapping[bytes, Amounts]) -> list[int]:
    most = {name: max((room.get(name, 0) for room in rooms.values()), default=0) for bundle in bundles.values() for name, _ in bundle}
    share = {index: max((amount / max(1, most[name]) for name, amount in bundle), default=0.0) for index, bundle in bundles.items()}
    return sorted(bundles, key=lambda index: (-share[index], index))


def _left(room: Amounts, demand: Demand) -> dict[str, int]:
    taken = dict(demand)
    return {name: amount - taken.get(name, 0) for name, amount in room.items()}


def _slack(room: Amounts, demand: Demand) -> float:
    return sum(1 - amount / room[name] for name, amount in demand if room.get(name, 0))


def _on_one(bundles: Mapping[int, Demand], rooms: Mapping[bytes, Amounts]) -> Plan | None:
    total = total_of([*bundles.values()])
    able = [node for node, room in rooms.items() if covers(room, total)]
    return dict.fromkeys(bundles, min(able, key=lambda node: _slack(rooms[node], total))) if able else None


def _on_few(largest: list[int], bundles: Mapping[int, Demand], rooms: Mapping[bytes, Amounts], taken: Collection[bytes]) -> Plan | None:
    """Fill the node that takes most bundles, then the next; the group's nodes come first."""
    found: Plan = {}
    while rest := [index for index in largest if index not in found]:
        best: tuple[int, list[int], bytes] = (0, [], b"")
        for node, room in rooms.items():
            if node in found.values():
                continue
            fitting = _filled(rest, bundles, room)
            weight = len(fitting) + (len(bundles) if node in taken and fitting else 0)
            if weight > best[0]:
                best = weight, fitting, node
        if not best[1]:
            return None
        found.update(dict.fromkeys(best[1], best[2]))
    return found


def _filled(indexes: list[int], bundles: Mapping[int, Demand], room: Amounts) -> list[int]:
    found = []
    for index in indexes:
        if covers(room, bundles[index]):
            room = _left(room, bundles[index])
            found.append(index)
    return found


def _apart(largest: list[int], bundles: Mapping[int, Demand], rooms: Mapping[bytes, Amounts], taken: Collection[bytes]) -> Plan | None:
    """Give bundles to the node with the fewest of the group, then with most left."""
    left = dict(rooms)
    count = Counter(taken)
    found: Plan = {}
    for index in largest:
        able = [node for node, room in left.items() if covers(room, bundles[index])]
        if not able:
            return None
        node = min(able, key=lambda each: (count[each], -_slack(left[each], bundles[index])))
        found[index] = node
        left[node] = _left(left[node], bundles[index])
        count[node] += 1
    return found


def _one_each(largest: list[int], bundles: Mapping[int, Demand], rooms: Mapping[bytes, Amounts]) -> Plan | None:
    """Match one to one; a bundle may take a node whose bundle finds another."""
    owner: dict[bytes, int] = {}

    def place(index: int, tried: set[bytes]) -> bool:
        for node, room in rooms.items():
            if node not in tried and covers(room, bundles[index]):
                tried.add(node)
                if node not in owner or place(owner[node], tried):
                    owner[node] = index
                    return True
        return False

    if not all(place(index, set()) for index in largest):
        return None
    return dict(sorted((index, node) for node, index in owner.items()))


def _search(largest: list[int], bundles: Mapping[int, Demand], rooms: Mapping[bytes, Amounts]) -> Plan | None:
    """Any plan, within a limit. Nodes with equal room are tried once."""
    left = {node: dict(room) for node, room in rooms.items()}
    options: list[list[bytes]] = []
    found: Plan = {}
    steps = 0
    while len(found) < len(largest):
        if len(options) == len(found):
            bundle = bundles[largest[len(found)]]
            distinct = {tuple(sorted(room.items())): node for node, room in left.items() if covers(room, bundle)}
            options.append(list(distinct.values()))
        steps += 1
        if steps > SEARCH_MAX:
            return None
        if options[-1]:
            index = largest[len(found)]
            node = found[index] = options[-1].pop()
            left[node] = _left(left[node], bundles[index])
        else:
            options.pop()
            if not found:
                return None
            index = largest[len(found) - 1]
            node = found.pop(index)
            for name, amount in bundles[index]:
                left[node][name] += amount
    return found
