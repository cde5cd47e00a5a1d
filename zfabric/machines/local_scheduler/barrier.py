"""Barriers: who has yet to report to a successor, and which messages wait until then (decision 0066).

A daemon after its predecessor and the heir of a dead home do the same. *Reporters* (processes, nodes, tables) state what they have; once
each has reported or is dead, the successor acts on all reports together. A barrier closes in stages:

| barrier | stage | closes when |
|---|---|---|
| ``Tables.barrier``, of a restarted scheduler | ``JOBS`` | the rows of jobs are read, which name the drivers |
| | ``PROCESSES`` | each process of this node is ``Ready``, and the retained rows are read |
| | ``NODES`` | each other node is ``Ready`` |
| | ``HOMES`` | each has answered which homeless objects are at home there |
| of each succession (``nodes.failover``) | ``REPORTS`` | each survivor has reported what it has of the dead node |
| | ``TAKEOVERS`` | each has taken over |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address

JOBS, PROCESSES, NODES, HOMES = range(4)
REPORTS, TAKEOVERS = range(2)

WAITS: dict[type[Any], int] = {
    **dict.fromkeys((m.Register, m.Ready), JOBS),
    **dict.fromkeys(
        (
            m.CallsEnded,
            m.CopyLost,
            m.Ended,
            m.LifeEnded,
            m.ReadLog,
            m.Reclaimed,
            m.RelayedBlock,
            m.RelayedCheckpoint,
            m.RelayedYields,
        ),
        NODES,
    ),
    **dict.fromkeys((m.Call, m.CallsRepeated, m.FetchValues, m.OutcomesReceived, m.Receipt), HOMES),
}
"""The stage for which messages wait at a restarted scheduler.

Those that answer or end something wait for ``NODES``: the last node may have a later attempt of the same task. Those that take refs to
another node wait for ``HOMES``, as refs travel with their homes, and so does what the same sender sends about the same calls: it must not
arrive first.
"""


class Barrier:
    """Closes in stages, in order. ``last`` is the last one; a barrier that ``has_closed`` awaits nobody.

    Held messages remain in one list, in order of arrival. Whoever closes a stage takes all and handles them again; those that wait for a
    later stage are held again. So messages of one sender that wait for the same stage stay in order.
    """

    def __init__(self, last: int, has_closed: bool = False) -> None:
        self.stage = last + 1 if has_closed else 0
        """The first stage that has not closed."""
        self.reporters: list[set[bytes]] = [set() for _ in range(last + 1)]
        """Who reports, or has reported, in each stage."""
        self._reported: list[set[bytes]] = [set() for _ in range(last + 1)]
        self._held: list[tuple[Address, m.Message]] = []

    def awaits(self, stage: int) -> bool:
        """Whether a stage has yet to close."""
        return self.stage <= stage

    def close(self, stage: int) -> None:
        """Close this stage, and those before."""
        self.stage = stage + 1

    # -- reporters --

    def expect(self, stage: int, reporters: Iterable[bytes]) -> None:
        """Await more reporters in a stage; some may have reported already."""
        self.reporters[stage].update(reporters)

    def report(self, stage: int, reporter: bytes) -> None:
        """Record that a reporter has stated everything."""
        self._reported[stage].add(reporter)

    def has_reported(self, stage: int, reporter: bytes) -> bool:
        """Whether a reporter has stated everything."""
        return reporter in self._reported[stage]

    @property
    def awaited(self) -> set[bytes]:
        """Who has yet to report before the next stage closes."""
        return self.reporters[self.stage] - self._reported[self.stage]

    def may_close(self, stage: int) -> bool:
        """Whether this is the next stage to close, and nobody is awaited."""
        return self.stage == stage and self.reporters[stage] <= self._reported[stage]

    def begin_anew(self, reporter: bytes) -> None:
        """Await a reporter's successor, which repeats all reports: drop those of before."""
        for reported in self._reported:
            reported.discard(reporter)
        self._held = [each for each in self._held if each[0][1:] != reporter]

    def remove(self, reporter: bytes) -> None:
        """No longer await a dead reporter; drop its reports."""
        self.begin_anew(reporter)
        for reporters in self.reporters:
            reporters.discard(reporter)

    # -- messages --

    def holds_back(self, source: Address, message: m.Message) -> bool:
        """Hold a message that must wait (``WAITS``). Return whether it must."""
        waits = self.stage <= WAITS.get(type(message), -1)
        if waits:
            self.hold(source, message)
        return waits

    def hold(self, source: Address, message: m.Message) -> None:
        """Hold a message until a stage closes."""
        self._held.append((source, message))

    def take_held(self) -> list[tuple[Address, m.Message]]:
        """Take all held messages, to be handled again."""
        held, self._held = self._held, []
        return held
