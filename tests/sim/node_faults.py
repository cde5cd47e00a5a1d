"""What goes wrong between the nodes of a world, and with whole nodes.

Each kind of fault has a generator of its own. A fault begins at a moment of the window or, since programs are short and most of these
moments idle, right after some task was delegated. All faults end with the window, except death.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.sim.network import NodeFaults
from tests.sim.node import Node, Overview
from tests.sim.programs import Program
from zfabric.protocol.options import SPREAD

ENLARGED = (70_000, 300_000, 1_500_000, 2_500_000)
"""Sizes of values that worlds of several nodes make large."""
CLOCKS_APART = 1e6
"""Largest offset of a node's clock in seconds."""
RATES_APART = 0.01
"""Largest difference between the rate of a node's clock and the right one."""
HEAD_STOPS = 1.5
"""The longest stop of the head, as a share of the lease, since no other node may end for it. The head is stopped once."""
PULLS_MOST = 5
"""A fault of an agent waits for one of so many pulls."""
DELEGATED_MOST = 6
"""A fault that waits for a delegation waits for one of so many."""

Action = Callable[["Node"], None]


def choose_node_faults(seed: int) -> NodeFaults:
    """Choose faults: often one kind alone, or none."""

    def chosen(kind: str, *counts: int) -> int:
        return random.Random(f"{seed}/{kind}").choice(counts)

    return NodeFaults(
        kills=chosen("do nodes die", 0, 0, 1, 2),
        restarts=chosen("do daemons die", 0, 0, 1, 2, 4),
        stops=chosen("do nodes stop", 0, 0, 1, 2),
        cuts=chosen("are nodes cut off", 0, 0, 0, 1, 3),
        clogs=chosen("do frames clog", 0, 0, 1, 2),
        delays=chosen("are links slow", 0, 0, 0, 1, 2),
        agent_kills=chosen("do agents die", 0, 0, 1, 3),
        agent_stops=chosen("do agents stop", 0, 0, 0, 2),
        clocks=chosen("do clocks differ", 0, 1) == 1,
        late_joins=chosen("do nodes join late", 0, 0, 1) == 1,
        window=random.Random(f"{seed}/window of nodes").choice((2.0, 6.0, 10.0)),
    )


def choose_restarts(seed: int) -> NodeFaults:
    """Choose faults that only kill daemons, several times and soon after each other."""
    rng = random.Random(f"{seed}/restarts alone")
    return NodeFaults(restarts=rng.choice((1, 2, 4, 8)), clocks=rng.random() < 0.5, window=rng.choice((1.0, 2.0, 6.0)))


def slowed_down(program: Program, seed: int) -> Program:
    """Add pauses to a program's root and some of its tasks, so that they still run when a node is declared dead."""
    rng = random.Random(f"{seed}/pauses")
    share = rng.choice((0.0, 0.2, 0.5))
    statements = [_longer(each, rng) if each[0] == "call" and not each[4] and rng.random() < share else each for each in program.statements]
    for _ in range(rng.choice((0, 1, 3))):
        statements.insert(rng.randrange(len(statements) + 1), ("sleep", rng.choice((0.5, 1.5, 3.0))))
    return program._replace(statements=tuple(statements))


def enlarged(program: Program, seed: int) -> Program:
    """In every third world, make many small values large, so that they are copied from node to node."""
    rng = random.Random(f"{seed}/large values")
    if rng.random() < 2 / 3:
        return program
    share = rng.choice((0.3, 0.9))

    def size(before: int) -> int:
        return rng.choice(ENLARGED) if not before and rng.random() < share else before

    def statement(each: tuple[Any, ...]) -> tuple[Any, ...]:
        if each[0] == "put":
            return (*each[:3], size(each[3]), each[4])
        if each[0] == "call":
            label, doomed, statements, returns = each[3]
            larger = tuple((size(before), inside) for before, inside in returns)
            return (*each[:3], (label, doomed, tuple(map(statement, statements)), larger), *each[4:])
        return each

    return program._replace(statements=tuple(map(statement, program.statements)))


def spread_out(program: Program, seed: int) -> Program:
    """Spread some tasks over the nodes, so that what they call is often on another one."""
    rng = random.Random(f"{seed}/spread")
    share = rng.choice((0.0, 0.3, 0.8))
    return program._replace(statements=tuple(_spread(each, rng, share) for each in program.statements))


def _spread(statement: tuple[Any, ...], rng: random.Random, share: float) -> tuple[Any, ...]:
    if statement[0] not in ("call", "make", "invoke"):
        return statement
    label, doomed, statements, *rest = statement[3]
    spec = (label, doomed, tuple(_spread(each, rng, share) for each in statements), *rest)
    strategy = (("strategy", SPREAD),) if statement[0] == "call" and rng.random() < share else ()
    return (*statement[:3], spec, (*strategy, *statement[4]), *statement[5:])


def _longer(call: tuple[Any, ...], rng: random.Random) -> tuple[Any, ...]:
    label, doomed, statements, returns = call[3]
    return (*call[:3], (label, doomed, (("sleep", rng.choice((0.3, 1.0, 2.0))), *statements), returns), *call[4:])


class ClusterFaults:
    """Performs the faults of one world."""

    def __init__(self, world: Overview, faults: NodeFaults) -> None:
        self.world = world
        self.faults = faults
        self.over = False
        self._kills = random.Random(f"{world.seed}/nodes that die")
        self._restarts = random.Random(f"{world.seed}/daemons that die")
        self._stops = random.Random(f"{world.seed}/nodes that stop")
        self._cuts = random.Random(f"{world.seed}/cuts")
        self._clogs = random.Random(f"{world.seed}/clogs")
        self._delays = random.Random(f"{world.seed}/slow links")
        self._waiting: list[tuple[int, Action]] = []
        """Faults that begin with this number of ``Delegate``, at the node that received it."""
        self._agents = random.Random(f"{world.seed}/agents that die or stop")
        self._pulling: list[tuple[int, Action]] = []
        """Faults that begin with this number of ``Pull``, at the node whose agent received it or at another one."""
        self._pulls = 0
        self._head_stopped = False
        self._delegated = 0

    def plan(self) -> None:
        """Choose when each fault begins. (Worlds without any have no events for them.)"""
        faults = self.faults
        for _ in range(faults.kills):
            self._plan(self._kills, self._kill)
        for _ in range(faults.restarts):
            self._plan(self._restarts, self._restart)
        late = random.Random(f"{self.world.seed}/nodes that die later")
        for _ in range(faults.late_kills):
            self.world.after(
                0.2 + 2.5 * late.random(), lambda: self._begin(self._kill, late.choice(self.world.nodes[1:] or self.world.nodes))
            )
        for _ in range(faults.stops):
            self._plan(self._stops, self._stop)
        for _ in range(faults.cuts):
            self._plan(self._cuts, self._cut)
        for _ in range(faults.clogs):
            self._plan(self._clogs, self._clog)
        for _ in range(faults.delays):
            self._plan(self._delays, self._slow)
        for _ in range(faults.agent_kills):
            self._plan_at_pull(self._kill_agent)
        for _ in range(faults.agent_stops):
            self._plan_at_pull(self._stop_agent)
        drains = random.Random(f"{self.world.seed}/nodes that are drained")
        for _ in range(faults.drains):
            self._plan(drains, self._drain)
        if faults.window:
            self.world.after(faults.window, self._heal)

    def _plan(self, rng: random.Random, action: Action) -> None:
        if rng.random() < 0.7:
            delay = rng.choice((0.0, 0.001, 0.01, 0.05))
            number = rng.randrange(1, DELEGATED_MOST)
            self._waiting.append((number, lambda node: self.world.after(delay, partial(self._begin, action, node))))
        else:
            self.world.after(rng.random() * self.faults.window, lambda: self._begin(action, rng.choice(self.world.nodes)))

    def _begin(self, action: Action, node: Node) -> None:
        if not self.over and not node.dead:
            action(node)

    def delegated(self, receiver: bytes) -> None:
        """Begin the faults that wait for this delegation."""
        self._delegated += 1
        due = [action for number, action in self._waiting if number == self._delegated]
        for node in self.world.nodes:
            if receiver in (node.identifier, node.daemon.incarnation):
                for action in due:
                    action(node)

    def _plan_at_pull(self, action: Action) -> None:
        rng = self._agents
        delay, elsewhere = rng.choice((0.0, 0.001, 0.005, 0.02)), rng.random() < 0.5

        def begin(node: Node) -> None:
            others = [each for each in self.world.living if each is not node]
            chosen = rng.choice(others) if elsewhere and others else node
            self.world.after(delay, partial(self._begin, action, chosen))

        self._pulling.append((rng.randrange(1, PULLS_MOST), begin))

    def pulling(self, agent: bytes) -> None:
        """Begin the faults that wait for this pull."""
        self._pulls += 1
        due = [action for number, action in self._pulling if number == self._pulls]
        for node in self.world.living if due else ():
            if node.agent is not None and node.agent.incarnation == agent:
                for action in due:
                    action(node)

    # -- agents --

    def _kill_agent(self, node: Node) -> None:
        self.world.states["agent killed"] += node.agent is not None
        node.supervisor.kill_agent()

    def _stop_agent(self, node: Node) -> None:
        agent = node.agent
        if agent is not None:
            self.world.states["agent stopped"] += 1
            agent.stopped = True
            self.world.after(self._agents.choice((0.01, 0.3, 2.0)), agent.go_on)

    # -- death --

    def _kill(self, node: Node) -> None:
        """Kill a node other than the head, between two of its next effects."""
        if node is self.world.nodes[0]:
            return
        node.doomed = True
        self.world.states["node killed"] += 1
        node.daemon.effects_left = self._kills.randrange(0, 12)
        self.world.after(0.02, lambda: node.end("it was killed"))

    def _restart(self, node: Node) -> None:
        """Kill this or another node's daemon between two of its next effects. The node's processes live on."""
        node = self._restarts.choice((node, *self.world.living))
        daemon = node.daemon
        if daemon.alive and daemon.effects_left is None:
            self.world.states["daemon killed"] += 1
            daemon.effects_left = self._restarts.randrange(0, 12)
            self.world.after(0.02, lambda: node.kill_daemon() if node.daemon is daemon else None)

    # -- drains --

    def _drain(self, node: Node) -> None:
        """Drain a node as the command line does, which asks again and again how far it is."""
        others = [each for each in self.world.living if each not in (self.world.nodes[0], self.world.driver.node)]
        if not others or node.dead:
            return
        node = node if node in others else others[-1]
        self.world.states["node drained"] += not node.excused
        node.excused = True
        if node.daemon.alive and node.daemon.scheduler.tables.nodes:
            node.daemon.scheduler.draining.drain(node.daemon.now)
            node.daemon.wake()
        self.world.after(0.05, lambda: self._drain(node))

    # -- stops --

    def _stop(self, node: Node) -> None:
        lease = self.world.config.node_lease
        head = node is self.world.nodes[0]
        if head and self._head_stopped:
            return
        self._head_stopped |= head
        seconds = lease * (HEAD_STOPS * self._stops.random() if head else self._stops.choice((0.1, 0.5, 0.9, 1.3, 2.0)))
        if not head:
            node.excused = True
        self.world.states["node stopped"] += 1
        self.world.note(f"node {node.number} stops for {seconds:.2f} s")
        node.stop(seconds)

    # -- links --

    def _cut(self, node: Node) -> None:
        rng, network = self._cuts, self.world.network
        others = [each for each in self.world.nodes if each is not node]
        if not others:
            return
        if rng.random() < 0.5:
            others = [rng.choice(others)]
        direction = rng.choice(("both", "both", "out", "in"))
        pairs = [(node.identifier, other.identifier) for other in others if direction != "in"]
        pairs += [(other.identifier, node.identifier) for other in others if direction != "out"]
        head = self.world.nodes[0]
        for each in others if node is head else [node] if head in others else []:
            each.excused = True
        self.world.states[f"cut {direction}" if len(others) == 1 else "cut off"] += 1
        flaps = rng.choice((1, 1, 4))
        begins = 0.0
        for _ in range(flaps):
            lasts = self.world.config.node_lease * rng.choice((0.1, 0.4, 1.0, 2.0)) / flaps
            self.world.after(begins, partial(self._sever, pairs))
            self.world.after(begins + lasts, partial(network.cuts.difference_update, pairs))
            begins += lasts * (1.0 + rng.random())
        if flaps > 1:
            self.world.states["cut again and again"] += 1

    def _sever(self, pairs: list[tuple[bytes, bytes]]) -> None:
        if not self.over:
            self.world.note(f"cut: {', '.join(f'{self.world.who(source)} -> {self.world.who(to)}' for source, to in pairs)}")
            self.world.network.cuts.update(pairs)

    def _clog(self, node: Node) -> None:
        others = [each for each in self.world.nodes if each is not node]
        if node is self.world.nodes[0] or not others:
            return
        node.excused = True
        self.world.states["clogged"] += 1
        seconds = self.world.config.node_lease * self._clogs.choice((0.3, 1.3, 1.6))
        self.world.note(f"frames of node {node.number} are held back for {seconds:.2f} s")
        for other in others:
            self.world.network.clogged.setdefault((node.identifier, other.identifier), [])
            self.world.after(seconds, partial(self.world.network.unclog, node.identifier, other.identifier))

    def _slow(self, node: Node) -> None:
        rng = self._delays
        others = [each for each in self.world.nodes if each is not node]
        if not others:
            return
        other = rng.choice(others)
        for pair in ((node.identifier, other.identifier), (other.identifier, node.identifier)):
            self.world.network.slow[pair] = rng.choice((0.001, 0.02, 0.2))
        self.world.states["slow link"] += 1

    def _heal(self) -> None:
        self.over = True
        self.world.network.cuts.clear()
        for pair in list(self.world.network.clogged):
            self.world.network.unclog(*pair)
        self.world.network.slow.clear()
        for node in self.world.nodes:
            node.go_on()
