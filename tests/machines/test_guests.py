"""Actors that live on another node than their home: what both schedulers send, and who decides."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_updates import holding, leaving, runs
from nodes_alone import ACTOR_ID, CALL, CALLER, HANDLE, HOME_A, HOME_C, SELF, Nodes, call
from scheduler_alone import ACTOR_CLASS, DRIVER, JOB, OWN, died, task_id

from zfabric.machines.global_scheduler.policies import Batch, MostRoom, NodeView
from zfabric.protocol import messages as m
from zfabric.protocol.effects import EndNode, KillProcess
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import ACTOR, CLIENT, WORKER, control_of, first_attempt, next_attempt, remote_caller
from zfabric.protocol.messages import FOR_LIFE
from zfabric.protocol.options import NODE_ID, ONE_CPU, RESOURCE_UNIT

FIRST = first_attempt(0, 2)
"""The first attempt that this node, the second one, gives out."""
GIVEN = first_attempt(0, 1)
"""The first attempt that node A gives out."""
THERE = (("hard", NODE_ID, "in", (HOME_A.hex(),)),)


class Home(Nodes):
    """The home of an actor that is to live on node A."""

    def make(self, *more: tuple[str, Any], strategy: Any = THERE) -> None:
        """The driver makes an actor, and calls it."""
        options = (("actor", b"blueprint"), ("strategy", strategy), *more)
        self.send(CLIENT + DRIVER, m.Export(((ACTOR_CLASS, "A", b"payload", options),)))
        self.submit((ACTOR_ID, ACTOR_CLASS, b"", ()))
        self.send(CLIENT + DRIVER, m.FindActors((ACTOR_ID,)))

    def made(self, attempt: int = FIRST, *, node: bytes = HOME_A, number: int = 1) -> None:
        """Another node has made it."""
        completed = m.Completed.of(((ACTOR_ID, attempt, m.OK, (b"value",)),), (), ())
        self.hear(node, m.Ended(number, tuple(completed), ()))

    def locations(self) -> list[tuple[Any, ...]]:
        """(state, where, attempt, call that ran) as the driver was sent them since the last look."""
        found = self.sent_to(CLIENT + DRIVER, m.Results, m.Notice)
        return [(row[1], row[2], row[3], row[5]) for each in found if type(each) is m.ActorLocations for row in each.rows]


@pytest.fixture
def home() -> Home:
    node = Home()
    node.make(("max_restarts", 1))
    return node


def ended(home: Home, attempt: int, executing: bytes = b"") -> None:
    home.hear(HOME_A, m.LifeEnded(ACTOR_ID, attempt, executing, "its process ended with signal 9", "last words", (77, 9, 0, 0), ""))


def test_an_actor_is_made_by_a_delegated_task_and_its_callers_see_their_own_daemon_in_its_place(home: Home) -> None:
    ((delegate,),) = [[each for each in home.told(HOME_A) if type(each) is m.Delegate]]
    assert [row[0] for row in delegate.rows] == [ACTOR_ID]
    home.made()
    assert home.locations() == [(m.CREATING, b"", FIRST, b""), (m.ALIVE, home.scheduler.address[1:], FIRST, b"")]
    home.send(CLIENT + DRIVER, m.Call(ACTOR_ID, FIRST, (call(),)))
    home.send(CLIENT + DRIVER, m.Call(ACTOR_ID, FIRST - 1, (call(1),)))
    home.send(CLIENT + DRIVER, m.OutcomesReceived(ACTOR_ID, (CALL,), False))
    home.send(CLIENT + DRIVER, m.StopRelayed(ACTOR_ID, CALL, "cancelled"))
    assert [each for each in home.told(HOME_A) if type(each) is not m.EndsReceived] == [
        m.RelayedCalls(ACTOR_ID, FIRST, (call(),), DRIVER, ()),
        m.RelayedReceipt(ACTOR_ID, (CALL,), False, DRIVER),
        m.StopRelayed(ACTOR_ID, CALL, "cancelled"),
    ]


def test_other_nodes_are_told_where_it_lives(home: Home) -> None:
    home.hear(HOME_C, holding(1, (HANDLE,)), m.FindActors((ACTOR_ID,)))
    home.made()
    rows = [row for each in home.told(HOME_C) if type(each) is m.ActorLocations for row in each.rows]
    assert [row[1:4] for row in rows] == [(m.CREATING, b"", FIRST), (m.ALIVE, HOME_A, FIRST)]


def test_the_end_of_its_process_is_a_restart_and_then_its_death(home: Home) -> None:
    home.made()
    home.told(HOME_A)
    home.locations()
    ended(home, FIRST, CALL)
    assert home.locations() == [(m.CREATING, b"", FIRST, CALL)]
    again = next_attempt(FIRST, FIRST)
    assert [each.attempts for each in home.told(HOME_A) if type(each) is m.Delegate] == [((0, again),)]
    home.made(again, number=2)
    assert home.locations()[-1] == (m.ALIVE, home.scheduler.address[1:], again, CALL)
    ended(home, FIRST)
    assert home.locations() == [], "that life has ended before"
    ended(home, again)
    (last,) = [each.rows[0] for each in home.sent_to(CLIENT + DRIVER, m.Notice) if type(each) is m.ActorLocations]
    assert (last[1], last[2]) == (m.DEAD, b"")
    assert "signal 9 (no restart is left)\nlast lines of its stderr:\nlast words" in unpack_failure(last[6])[1]


def test_it_ends_at_once_when_it_is_killed_and_is_not_made_again(home: Home) -> None:
    home.made()
    home.told_at_last(HOME_A)
    home.send(CLIENT + DRIVER, m.KillActor(ACTOR_ID, True))
    assert home.told(HOME_A) == [m.StopDelegated(ACTOR_ID, FIRST, "force", False)]
    ended(home, FIRST)
    assert home.told(HOME_A) == []
    assert home.locations()[-1][0] == m.DEAD


def test_an_attempt_to_make_it_that_is_killed_stops_there(home: Home) -> None:
    home.told(HOME_A)
    home.send(CLIENT + DRIVER, m.KillActor(ACTOR_ID, True))
    assert m.StopDelegated(ACTOR_ID, FIRST, "force", False) in home.told(HOME_A)
    assert home.locations()[-1][0] == m.DEAD


def test_its_process_is_asked_to_end_with_its_last_handle(home: Home) -> None:
    home.made()
    home.told_at_last(HOME_A)
    home.send(CLIENT + DRIVER, m.Release((HANDLE,)))
    assert home.told(HOME_A) == [m.StopDelegated(ACTOR_ID, FIRST, m.RETIRED, False)]
    ended(home, FIRST)
    assert not home.scheduler.tables.actors
    assert not home.scheduler.tables.nodes[HOME_A].actors


@pytest.mark.parametrize("last", [m.KillActor(ACTOR_ID, True), m.KillActor(ACTOR_ID, False), m.Release((HANDLE,))])
def test_the_request_to_end_its_life_is_repeated_to_the_next_daemon_of_its_node(home: Home, last: Any) -> None:
    """The daemon before may have died with it. The process that killed the actor would wait for its end for ever."""
    home.made()
    home.told_at_last(HOME_A)
    home.send(CLIENT + DRIVER, last)
    (asked,) = home.told(HOME_A)
    assert asked == m.StopDelegated(ACTOR_ID, FIRST, m.RETIRED if type(last) is m.Release else "force", False)
    _register(home, b"daemon.2", (ACTOR_ID, FIRST))
    told = home.told(HOME_A)
    assert [each for each in told if type(each) is type(asked)] == [asked]
    assert told.index(m.RegisterNode(m.PROTOCOL_VERSION, OWN, b"daemon.2")) < told.index(asked)
    ended(home, FIRST)
    again = next_attempt(FIRST, FIRST)
    if last == m.KillActor(ACTOR_ID, False):
        home.made(again, number=2)
    home.told(HOME_A)
    _register(home, b"daemon.3", (ACTOR_ID, again))
    assert asked not in home.told(HOME_A), "that life has ended"


def test_a_request_to_end_at_once_is_repeated_though_the_last_handle_goes_then(home: Home) -> None:
    home.made()
    home.told_at_last(HOME_A)
    home.send(CLIENT + DRIVER, m.KillActor(ACTOR_ID, True))
    home.send(CLIENT + DRIVER, m.Release((HANDLE,)))
    _register(home, b"daemon.2", (ACTOR_ID, FIRST))
    repeated = [each for each in home.told(HOME_A) if type(each) is m.StopDelegated]
    assert repeated[-1] == m.StopDelegated(ACTOR_ID, FIRST, "force", False)


def _register(home: Home, daemon: bytes, *running: tuple[bytes, int]) -> None:
    """Node A has a new daemon, which has these attempts."""
    ours = home.scheduler.address[1:]
    home.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, daemon, m.ANY_DAEMON), m.RegisterNode(m.PROTOCOL_VERSION, daemon, ours))
    home.hear(HOME_A, runs(running), m.Ready())


def test_a_caller_that_exits_is_gone_there_too(home: Home) -> None:
    home.made()
    worker = home.delegated(5)
    home.send(CLIENT + worker, m.FindActors((ACTOR_ID,)))
    home.told(HOME_A)
    died(home, worker, None)
    assert m.CallerGone(worker) in home.told(HOME_A)


def test_with_its_node_dead_it_is_made_on_another_one() -> None:
    home = Home()
    home.make(("max_restarts", -1), strategy=(("soft", NODE_ID, "in", (HOME_A.hex(),)),))
    home.made()
    home.locations()
    home.table(2, SELF, HOME_C)
    assert home.locations() == [(m.CREATING, b"", FIRST, b"")], "which call ran there, nobody knows"
    home.workers()
    assert [each[1:] for each in home.dispatched()] == [(1, next_attempt(FIRST, FIRST))]


def test_a_dead_node_that_it_requires_is_the_end_of_it(home: Home) -> None:
    home.made()
    home.locations()
    home.table(2, SELF, HOME_C)
    (first, last) = [each.rows[0] for each in home.sent_to(CLIENT + DRIVER, m.Notice) if type(each) is m.ActorLocations]
    assert (first[1], last[1]) == (m.CREATING, m.DEAD)
    assert unpack_failure(last[6])[0] == "TaskUnschedulableError"


def test_actors_that_stay_where_they_are_made_say_why() -> None:
    home = Home()
    home.make(("lightweight", True))
    ((_, (_, (payload,))),) = home.results().items()
    assert unpack_failure(payload)[0] == "TaskUnschedulableError"
    assert "lightweight actors" in unpack_failure(payload)[1]


# -- where it lives --

CLASS = (ACTOR_CLASS, "A", b"payload", (("actor", b"blueprint"),))
ROW = (ACTOR_ID, ACTOR_CLASS, b"", ())


def delegate(attempt: int = GIVEN, home: bytes = HOME_A, options: tuple[Any, ...] = ()) -> m.Delegate:
    return m.Delegate((JOB, "", home), ((*CLASS[:3], (*CLASS[3], *options)),), (ROW,), (), (), (), attempt)


class Host(Nodes):
    """A node on which an actor of node A lives."""

    def __init__(self, *options: Any, **config: Any) -> None:
        super().__init__(**config)
        self.hear(HOME_A, delegate(options=options))
        self.workers()
        ((self.worker, _, attempt),) = self.dispatched()
        assert attempt == GIVEN
        self.sent.clear()

    def live(self) -> None:
        """It is made."""
        self.complete(self.worker, 1, GIVEN)
        assert [each.number for each in self.told(HOME_A)] == [1]
        self.hear(HOME_A, m.EndsReceived(1))
        self.sent.clear()

    def drain(self) -> None:
        """This node is drained."""
        self.scheduler.draining.drain(self.now, force=True)
        self.turn()

    def control(self) -> list[Any]:
        """What the actor's process was sent beside its calls."""
        return self.sent_to(b"K" + control_of(self.worker))

    def killed(self) -> list[int]:
        """Processes that the supervisor was asked to kill."""
        return [each.pid for each in self.effects if type(each) is KillProcess]


@pytest.fixture
def host() -> Host:
    node = Host()
    node.live()
    return node


def test_calls_of_other_nodes_reach_it_and_its_end_goes_behind_their_outcomes(host: Host) -> None:
    host.hear(HOME_C, m.RelayedCalls(ACTOR_ID, GIVEN, (call(), call(1)), CALLER, ()))
    (relayed,) = host.sent_to(ACTOR + host.worker)
    assert relayed.caller == remote_caller(CALLER, HOME_C)
    host.hear(HOME_C, m.RelayedCalls(ACTOR_ID, GIVEN + 1, (call(2),), CALLER, ()))
    assert host.sent_to(ACTOR + host.worker) == []
    host.send(WORKER + host.worker, m.CallOutcomes(((CALL, remote_caller(CALLER, HOME_C), m.OK, (b"value",), ()),)))
    assert [type(each) for each in host.told(HOME_C)] == [m.CallsEnded]
    died(host, host.worker, None)
    (end,) = [each for each in host.told(HOME_A) if type(each) is m.LifeEnded]
    assert end[:5] == (ACTOR_ID, GIVEN, b"", "its process ended with signal 9", "its last words")
    assert not host.scheduler.tables.guests


def test_its_home_is_told_with_its_end_that_it_ended_itself(host: Host) -> None:
    """What it said of that before may have been lost with the daemon of its home, which would make it again."""
    host.send(CLIENT + host.worker, m.ActorExiting(ACTOR_ID))
    died(host, host.worker, None)
    (end,) = [each for each in host.told(HOME_A) if type(each) is m.LifeEnded]
    assert end.ending == "it ended itself (exit_actor)"


def test_processes_here_call_it_directly(host: Host) -> None:
    caller = host.delegated(3, HANDLE)
    host.send(CLIENT + caller, m.Hold((HANDLE,)))
    host.send(CLIENT + caller, m.FindActors((ACTOR_ID,)))
    assert m.FindActors((ACTOR_ID,)) in host.told(HOME_A)
    host.hear(HOME_A, m.ActorLocations(((ACTOR_ID, m.ALIVE, SELF, GIVEN, True, b"", b""),)))
    ((row,),) = [each.rows for each in host.sent_to(CLIENT + caller) if type(each) is m.ActorLocations]
    assert row[1:5] == (m.ALIVE, host.worker, GIVEN, True)
    died(host, host.worker, None)
    host.hear(HOME_A, m.ActorLocations(((ACTOR_ID, m.CREATING, b"", GIVEN, True, CALL, b""),)))
    ((row,),) = [each.rows for each in host.sent_to(CLIENT + caller) if type(each) is m.ActorLocations]
    assert row[1:6] == (m.CREATING, b"", GIVEN, False, CALL), "their link to its process is over"


def test_a_caller_here_that_exits_is_gone_to_it(host: Host) -> None:
    caller = host.delegated(3, HANDLE)
    host.send(CLIENT + caller, m.FindActors((ACTOR_ID,)))
    host.sent.clear()
    died(host, caller, None)
    assert m.CallerGone(caller) in host.sent_to(b"K" + control_of(host.worker))


def test_its_home_ends_it_at_once_or_after_its_calls(host: Host) -> None:
    host.hear(HOME_C, m.StopDelegated(ACTOR_ID, GIVEN, m.RETIRED, False), m.StopDelegated(ACTOR_ID, GIVEN, "force", False))
    host.hear(HOME_A, m.StopDelegated(ACTOR_ID, GIVEN + 1, m.RETIRED, False), m.StopDelegated(ACTOR_ID, GIVEN + 1, "force", False))
    assert host.sent_to(b"K" + control_of(host.worker)) == [] == host.killed(), "only its home does, and only this life"
    host.hear(HOME_A, m.StopDelegated(ACTOR_ID, GIVEN, m.RETIRED, False))
    assert host.sent_to(b"K" + control_of(host.worker)) == [m.RetireActor(ACTOR_ID, GIVEN, False)]
    host.hear(HOME_A, m.StopDelegated(ACTOR_ID, GIVEN, "force", False))
    assert len(host.killed()) == 1


def test_as_its_node_is_drained_it_ends_after_its_running_calls_and_the_node_once_all_others_know() -> None:
    host = Host(("max_restarts", 1))
    host.live()
    host.drain()
    host.drain()
    assert host.control() == [m.DrainActor(ACTOR_ID, GIVEN)]
    host.send(ACTOR + host.worker, m.ActorDrained(ACTOR_ID, GIVEN))
    host.told(HOME_A)
    died(host, host.worker, None)
    end, last = host.told(HOME_A)
    assert (type(end), *end[:4]) == (m.LifeEnded, ACTOR_ID, GIVEN, ACTOR_ID, "its node was drained")
    assert last == m.UpdateLedger(last.number, ()), "the last message to each node"
    for node, asked, over in ((HOME_A, last, False), (HOME_C, host.told(HOME_C)[-1], True)):
        host.hear(node, m.LedgerUpdated(asked.number))
        assert any(type(each) is EndNode for each in host.effects) == over


def test_without_restarts_it_ends_once_it_has_no_calls_and_no_task_is_left_that_may_need_it(host: Host) -> None:
    worker = host.delegated(3)
    host.drain()
    assert host.control() == []
    host.end(worker, 3)
    assert host.control() == [m.RetireActor(ACTOR_ID, GIVEN, False)]
    died(host, host.worker, None)
    (end,) = [each for each in host.told(HOME_A) if type(each) is m.LifeEnded]
    assert end.ending == "its node was drained"


@pytest.mark.parametrize("known", [True, False])
def test_the_drain_of_its_node_is_no_restart(known: bool) -> None:
    """Also if a restarted daemon of its home does not know of the drain yet."""
    home = Home()
    home.make(("max_restarts", 1), strategy=(("soft", NODE_ID, "in", (HOME_A.hex(),)),))
    home.made()
    if known:
        home.hear(HOME_A, leaving(HOME_A))
    home.locations()
    ended(home, FIRST, ACTOR_ID)
    assert home.locations() == [(m.CREATING, b"", FIRST, ACTOR_ID)], "what has no outcome has not begun"
    assert home.scheduler.tables.actors[ACTOR_ID].restarts == 0


def test_its_home_receives_that_it_ends_itself(host: Host) -> None:
    host.send(ACTOR + host.worker, m.ActorExiting(ACTOR_ID))
    assert host.told(HOME_A) == [m.ActorExiting(ACTOR_ID)]


def test_it_ends_with_its_home(host: Host) -> None:
    host.table(2, SELF, HOME_C)
    assert len(host.killed()) == 1


def test_an_attempt_that_fails_is_reported_and_its_process_ends() -> None:
    host = Host()
    host.complete(host.worker, 1, GIVEN, m.ERROR, b"error")
    (end,) = [each for each in host.told(HOME_A) if type(each) is m.Ended]
    assert m.Completed(*end.completed).rows == ((ACTOR_ID, GIVEN, m.ERROR, (b"error",)),)
    assert len(host.killed()) == 1
    assert not host.scheduler.tables.guests


def test_a_node_with_as_many_actors_as_it_may_have_refuses_more() -> None:
    host = Host(actors_max=1)
    host.hear(HOME_C, m.Delegate((JOB, "", HOME_A), (CLASS,), ((task_id(2), *ROW[1:]),), (), (), (), first_attempt(0, 3)))
    (end,) = [each for each in host.told(HOME_C) if type(each) is m.Ended]
    ((_, _, _, (payload,)),) = m.Completed(*end.completed).rows
    assert unpack_failure(payload)[0] == "ActorLimitExceededError"


# -- where there is room for actors --


def view(node: bytes, total: int, free: int, lasting: int, queued: int = 0) -> NodeView:
    pairs = [(("CPU", cpus * RESOURCE_UNIT),) for cpus in (total, free, lasting)]
    return NodeView(node, b"L" + node, pairs[0], pairs[1], queued, 0.1, pairs[2])


def test_actors_go_where_others_leave_room_though_tasks_run_there() -> None:
    views = [view(b"full....", 2, 0, 2), view(b"busy....", 2, 0, 1, queued=50), view(b"free....", 4, 1, 2)]
    batch = Batch(ONE_CPU, 5, FOR_LIFE, {})
    assert MostRoom().place(batch, views) == {b"full....": 0, b"busy....": 1, b"free....": 2}
    assert MostRoom().place(batch, views) == dict.fromkeys((b"full....", b"busy....", b"free...."), 0), "they are taken by now"


def test_a_home_without_room_asks_where_there_is_some() -> None:
    home = Home()
    home.make(("demand", ONE_CPU), strategy=())
    home.workers()
    assert len(home.dispatched()) == 1
    home.submit((task_id(9), ACTOR_CLASS, b"", ()))
    home.sent.clear()
    home.now += home.config.spill_after
    home.scheduler.tick(home.now)
    home.turn()
    sent = [message for _, message in home.sent if type(message) in (m.Heartbeat, m.Place)]
    beat = next(each for each in sent if type(each) is m.Heartbeat)
    assert beat.lasting == (("CPU", 2 * RESOURCE_UNIT),), "what the first one has, and the second one waits for"
    ((row,),) = [each.rows for each in sent if type(each) is m.Place]
    assert row[1:4] == (ONE_CPU, 1, FOR_LIFE)
    home.send(b"G" + OWN, m.Placed(((row[0], ((HOME_A, 0), (HOME_C, 1))),)))
    assert [type(each) for each in home.told(HOME_A)] == []
    assert [each.rows[0][0] for each in home.told(HOME_C) if type(each) is m.Delegate] == [task_id(9)]
