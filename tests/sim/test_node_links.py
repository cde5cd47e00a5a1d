"""Links between simulated nodes: connections end at random, and nothing is lost; links that are broken on purpose are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.__main__ import run_seed
from tests.sim.kinds import Kind
from tests.sim.network import Faults, NodeFaults
from tests.sim.world import WorldResult
from zfabric.machines.common.link import Link
from zfabric.machines.common.node_link import NodeLink

LOSSY = Faults(loss=0.1, window=2.0)
SEEDS = 12


def results(faults: Faults = LOSSY) -> list[WorldResult]:
    return [run_seed(seed, Kind(nodes=2), faults=faults) for seed in range(SEEDS)]


@pytest.mark.parametrize("faults", [LOSSY, Faults(nodes=NodeFaults(cuts=3, window=2.0))])
def test_worlds_finish_whose_connections_end(faults: Faults) -> None:
    found = results(faults)
    assert [each.failure for each in found if each.failure] == []
    assert sum(each.states["connection ended"] for each in found) > SEEDS


def _begun_anew(accept: Callable[..., bytes]) -> Callable[..., bytes]:
    """The side that accepts a connection begins the link anew, whichever daemon dials."""

    def anew(link: NodeLink, frame: bytes, now: float) -> bytes:
        link._link = Link(0, float("inf"))
        link._newest = 0
        return accept(link, frame, now)

    return anew


def _continued_where_writing_ended(agree: Callable[..., None]) -> Callable[..., None]:
    """What the connection before has lost is not sent again."""

    def agreed(link: NodeLink, hello: Any, now: float, answered: bool) -> None:
        written = link._written
        agree(link, hello, now, answered)
        link._written = max(written, link._written)

    return agreed


@pytest.mark.parametrize(("method", "broken"), [("accept", _begun_anew), ("_agree", _continued_where_writing_ended)])
def test_broken_links_are_found(monkeypatch: pytest.MonkeyPatch, method: str, broken: Callable[..., Any]) -> None:
    monkeypatch.setattr(NodeLink, method, broken(getattr(NodeLink, method)))
    assert any(each.failure for each in results())
