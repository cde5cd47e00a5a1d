"""Programs whose tasks return refs to what they have submitted, and end before it does: what other nodes need when a node dies.

Every value is certain, unless a task put it, or put what it needs: that is lost with its node.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from tests.sim.node import node_identifier
from tests.sim.programs import LOST, MODULUS, PLAIN, Program, Spec, mix
from zfabric.protocol.options import NODE_ID


class _Ref(NamedTuple):
    """The model of an object: its number, the refs inside, and whether its node's death loses it."""

    number: int
    inside: tuple[_Ref, ...] = ()
    frail: bool = False


class OutlivingAuthor:
    """Writes one program, for ``nodes`` nodes."""

    def __init__(self, seed: str, nodes: int) -> None:
        self.random = random.Random(seed)
        self.nodes = nodes
        self.depth_max = self.random.choice((1, 2, 3))
        self.puts = self.random.random() < 0.3
        self.large = self.random.random() < 0.5
        self.tasks = 0
        self.tasks_max = self.random.choice((8, 16, 30))

    def write(self) -> Program:
        """Write parents, their refs taken out, readers of these, and at last all values, with pauses between."""
        rng = self.random
        statements: list[Any] = []
        slots: dict[int, _Ref] = {}
        for _ in range(rng.randrange(1, 5)):
            slots[len(slots)] = self._call(statements, len(slots), {}, 1)
        self._pause(statements)
        parents = dict(slots)
        for slot, parent in parents.items():
            statements.append(("get", ((slot, parent.number),)))
            for index, each in enumerate(parent.inside):
                if rng.random() < 0.8:
                    statements.append(("open", slot, index, len(slots)))
                    slots[len(slots)] = each
        for slot in parents:
            if rng.random() < 0.7:
                statements.append(("drop", slot))
        kept = {slot: each for slot, each in slots.items() if slot not in parents}
        for _ in range(rng.randrange(4)):
            self._pause(statements)
            number = len(slots)
            slots[number] = kept[number] = self._reader(statements, number, kept)
        self._pause(statements)
        self._get_all(statements, kept)
        return Program(tuple(statements), self.tasks)

    def _pause(self, statements: list[Any]) -> None:
        statements.append(("sleep", self.random.choice((0.0, 0.1, 1.0, 3.0, 4.5))))

    def _get_all(self, statements: list[Any], slots: dict[int, _Ref]) -> None:
        """Get values, and the values of refs inside some of them."""
        rng = self.random
        agenda = list(slots.items())
        rng.shuffle(agenda)
        number = max(slots, default=0)
        while agenda:
            slot, ref = agenda.pop()
            if ref.frail:
                statements.append(("peek", ((slot, ref.number, tuple(sorted(LOST))),)))
                continue
            statements.append(("get", ((slot, ref.number),)))
            for index, each in enumerate(ref.inside):
                number += 1
                if rng.random() < 0.7:
                    statements.append(("open", slot, index, 1000 + number))
                    agenda.append((1000 + number, each))
            if rng.random() < 0.3:
                statements.append(("drop", slot))

    def _strategy(self) -> tuple[tuple[str, Any], ...]:
        number = self.random.randrange(self.nodes + 1)
        if not 0 < number <= self.nodes:
            return ()
        return (("strategy", (("soft", NODE_ID, "in", (node_identifier(number).hex(),)),)),)

    def _call(self, statements: list[Any], slot: int, siblings: dict[int, _Ref], depth: int) -> _Ref:
        """Write a call that may need earlier ones. Return its value's model."""
        rng = self.random
        self.tasks += 1
        needs = tuple(rng.choice(list(siblings)) for _ in range(rng.choice((0, 0, 1, 2)))) if siblings else ()
        label = rng.randrange(MODULUS)
        total = label
        for each in needs:
            total = mix(total, siblings[each].number)
        spec, inside = self._spec(label, depth)
        statements.append(("call", (slot,), PLAIN, spec, self._strategy(), needs, ()))
        return _Ref(mix(total, 0), inside, any(siblings[each].frail for each in needs))

    def _spec(self, label: int, depth: int) -> tuple[Spec, tuple[_Ref, ...]]:
        rng = self.random
        body: list[Any] = [("sleep", rng.choice((0.0, 0.01, 0.3, 1.5, 6.0, 6.0)) if depth > 1 else 0.0)]
        slots: dict[int, _Ref] = {}
        for _ in range(rng.randrange(1, 5) if depth <= self.depth_max else 0):
            number = len(slots)
            if self.tasks >= self.tasks_max:
                break
            if self.puts and rng.random() < 0.2:
                value = rng.randrange(MODULUS)
                body.append(("put", number, value, self._size(), ()))
                slots[number] = _Ref(value, (), True)
            else:
                slots[number] = self._call(body, number, slots, depth + 1)
        if rng.random() < 0.2:
            body.append(("sleep", rng.choice((0.1, 1.0))))
        returned = [slot for slot in slots if rng.random() < 0.8]
        return (label, False, tuple(body), ((self._size(), tuple(returned)),)), tuple(slots[slot] for slot in returned)

    def _size(self) -> int:
        return self.random.choice((0, 0, 200_000, 700_000)) if self.large else 0

    def _reader(self, statements: list[Any], slot: int, known: dict[int, _Ref]) -> _Ref:
        """Write a call that needs some objects as arguments, and after a while gets others itself."""
        rng = self.random
        self.tasks += 1
        chosen = rng.sample(list(known), min(len(known), rng.randrange(4)))
        needs, boxed = chosen[: len(chosen) // 2], tuple(chosen[len(chosen) // 2 :])
        label = rng.randrange(MODULUS)
        total = label
        for each in needs:
            total = mix(total, known[each].number)
        body: list[Any] = [("sleep", rng.choice((0.0, 0.5, 2.0)))]
        for index, each in enumerate(boxed):
            if known[each].frail:
                body.append(("peek", ((index, known[each].number, tuple(sorted(LOST))),)))
            else:
                body.append(("get", ((index, known[each].number),)))
                total = mix(total, known[each].number)
        inside = boxed if rng.random() < 0.5 else ()
        spec = (label, False, tuple(body), ((self._size(), tuple(range(len(inside)))),))
        options = (*self._strategy(), *((("contains", boxed),) if boxed else ()))
        statements.append(("call", (slot,), PLAIN, spec, options, tuple(needs), boxed))
        return _Ref(mix(total, 0), tuple(known[each] for each in inside), any(known[each].frail for each in needs))
