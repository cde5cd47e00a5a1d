"""Reproductions: reduced programs with their faults that show a mistake, whichever way chance goes.

A seed that shows a broken variant has another world after the next change of what is sent. A reproduction has only the statements and
faults that the mistake needs; seeds decide when exactly frames arrive and processes die. So the mistake shows in many of its worlds, also
after a change. ``python -m tests.sim --variant NAME --reduce SEED`` makes one of a world that fails.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from tests.sim.kinds import Kind
from tests.sim.network import Faults, NodeFaults
from tests.sim.programs import Program
from tests.sim.shrinking import shrink_world
from tests.sim.variants import applied, shows
from tests.sim.world import World, WorldResult, run_seed

PLACE = Path(__file__).parent.parent / "reproductions"
SEEDS = range(200)
"""Seeds among which a mistake has to be seen."""
SHARE_LEAST = 0.1
"""Share of worlds that must fail. Even if only half as many fail after a change, chance misses them all once in 28,000 times."""
TRIED = range(1000, 1030)
"""Seeds by which two reproductions are compared while one is made."""
WINDOWS = (0.02, 0.1, 0.3, 1.0, 3.0)
"""Seconds within which processes are made to die: a reduced program ends sooner than the original."""
SHRUNK_IN = 300
"""Worlds run to shrink the program and its faults."""


class Reproduction(NamedTuple):
    """A reduced program with its faults, and what else its worlds have in common."""

    kind: Kind
    faults: Faults
    cpus: int
    pieces: int
    """Size of the arena."""
    settings: dict[str, Any]
    statements: tuple[Any, ...]

    def run(self, seed: int) -> WorldResult:
        """Run the world of a seed."""
        rest = {"cpus": self.cpus, "pieces": self.pieces, "settings": self.settings}
        return run_seed(seed, self.kind, faults=self.faults, program=Program(self.statements, 0), **rest)

    def failures(self, seeds: range) -> Iterator[str]:
        """Yield the failures of these seeds."""
        return (failure for seed in seeds if (failure := self.run(seed).failure))

    def text(self) -> str:
        """The text of its file: one line per part and statement."""
        faults = {name: value for name, value in self.faults._asdict().items() if value != Faults._field_defaults[name]}
        if "nodes" in faults:
            nodes = self.faults.nodes._asdict().items()
            faults["nodes"] = {name: value for name, value in nodes if value != NodeFaults._field_defaults[name]}
        kind = {each.name: getattr(self.kind, each.name) for each in fields(Kind) if getattr(self.kind, each.name) != each.default}
        *parts, (_, statements) = {**self._asdict(), "kind": kind, "faults": faults}.items()
        return "".join((*(f"{name} {part!r}\n" for name, part in parts), *(f"{each!r}\n" for each in statements)))


def parse(text: str) -> Reproduction:
    """Parse a reproduction's file."""
    lines = text.splitlines()
    count = len(Reproduction._fields) - 1
    kind, faults, cpus, pieces, settings = (literal_eval(line.partition(" ")[2]) for line in lines[:count])
    nodes = NodeFaults(**faults.pop("nodes", {}))
    return Reproduction(Kind(**kind), Faults(**faults, nodes=nodes), cpus, pieces, settings, tuple(map(literal_eval, lines[count:])))


def stored() -> dict[str, Reproduction]:
    """All reproductions, by the variant that each shows."""
    return {path.stem: parse(path.read_text()) for path in sorted(PLACE.glob("*.txt"))}


def reduce(variant: str, seed: int, kind: Kind) -> tuple[Reproduction, float]:
    """Reduce a world in which a variant is seen; return the reproduction, and the share of its worlds that fail.

    Raises ``ValueError`` if the world does not fail, or if the reduced one fails without the variant.
    """
    world = World(seed, kind)
    whole = Reproduction(kind, world.faults, world.cpus, world.pieces, world.settings, world.program.statements)

    def run(faults: Faults, program: Program) -> WorldResult:
        """Run a smaller world with the variant. A failure does not count if the world fails without the variant, too."""
        smaller = whole._replace(faults=faults, statements=program.statements)
        with applied(variant):
            result = smaller.run(seed)
        return result._replace(failure="") if result.failure and smaller.run(seed).failure else result

    found = shrink_world(world.faults, world.program, run, SHRUNK_IN)
    best, most = whole, -1
    # What needs frames that all take the same time needs a certain seed, so to say.
    reduced = whole._replace(faults=found.faults._replace(jitter=True), statements=found.program.statements)
    for alike in (_with_settings, _sooner, _slower, _more_often):
        for candidate in alike(reduced if most < 0 else best):
            with applied(variant):
                count = sum(shows(variant, failure) for failure in candidate.failures(TRIED))
            if count > most and not any(candidate.failures(TRIED)):
                best, most = candidate, count
    if most < 0:
        raise ValueError("what is left of this world fails without the variant")
    return best, most / len(TRIED)


def _with_settings(reproduction: Reproduction) -> Iterator[Reproduction]:
    """Yield the same with the settings of each seed, and with those of the original world."""
    yield reproduction._replace(settings={})
    yield reproduction


def _sooner(reproduction: Reproduction) -> Iterator[Reproduction]:
    """Yield the same with other windows for faults."""
    faults = reproduction.faults
    for window in WINDOWS:
        nodes = faults.nodes._replace(window=window if faults.nodes.window else 0.0)
        yield reproduction._replace(faults=faults._replace(window=window, nodes=nodes))
        if faults.nodes.window:
            yield reproduction._replace(faults=faults._replace(nodes=nodes))


def _slower(reproduction: Reproduction) -> Iterator[Reproduction]:
    """Yield the same with frames that take longer, or are late, repeated or lost more often, so that more happens meanwhile."""
    for changed in ({"delay": 0.001}, {"delay": 0.005}, {"late": 0.2}, {"duplication": 0.2}, {"loss": 0.2}):
        more: dict[str, Any] = dict(changed)
        yield reproduction._replace(faults=reproduction.faults._replace(**more))


def _more_often(reproduction: Reproduction) -> Iterator[Reproduction]:
    """Yield the same with more faults of a kind that it has."""
    faults = reproduction.faults
    for name in ("worker_crashes", "daemon_crashes", "stalls", "start_failures"):
        if count := getattr(faults, name):
            yield from (reproduction._replace(faults=faults._replace(**{name: count + more})) for more in (1, 2))
    for name in ("kills", "restarts", "stops", "cuts", "clogs", "delays"):
        if count := getattr(faults.nodes, name):
            more = (faults.nodes._replace(**{name: count + each}) for each in (1, 2))
            yield from (reproduction._replace(faults=faults._replace(nodes=nodes)) for nodes in more)


__all__ = ["PLACE", "SEEDS", "SHARE_LEAST", "Reproduction", "parse", "reduce", "stored"]
