"""Both sides of a call alone: what a caller retains, repeats and fails; what an actor's process sends, and to whom."""

from __future__ import annotations

from typing import Any

import pytest

from zfabric.config import Config
from zfabric.machines.client.calls import ACKNOWLEDGE_EVERY
from zfabric.machines.client.machine import Client
from zfabric.machines.client.targets import UNASKED
from zfabric.machines.worker.machine import LEFT, Worker
from zfabric.machines.worker.mailbox import Invocation
from zfabric.protocol import messages as m
from zfabric.protocol.failures import left_for_good, pack_failure, unpack_failure
from zfabric.protocol.ids import CALL_RETURN, CLIENT, FIRST_RETURN, LOCAL_SCHEDULER, WORKER, call_value, job_id, object_id, remote_caller
from zfabric.protocol.inside import with_refs
from zfabric.protocol.messages import ALIVE, CREATING, DEAD, ERROR, FAILED, OK
from zfabric.protocol.options import LOGGED

DAEMON = b"\x02daemon0"
ME = b"\x01client0"
HOME, NEXT_HOME = b"\x01actor00", b"\x01actor01"
ACTOR = b"a" * 16
JOB = job_id(1)
REGISTER = m.Register(m.PROTOCOL_VERSION, "driver", 1, 1, JOB, ME, b"", "", "")
TOO_LARGE = 10_000_000
"""Bytes of a value that an actor fetches, and does not copy."""


@pytest.fixture
def client() -> Client:
    made = Client(CLIENT + ME, Config.of({}))
    made.connect(DAEMON)
    made.step(0.0, b"L" + DAEMON, m.Welcome(m.PROTOCOL_VERSION, JOB, b"thisnode", "", 0, ()))
    made.references.add(ACTOR + FIRST_RETURN)
    made.take_effects(0.0)
    return made


def call(client: Client, number: int, retries: int = 0, needs: tuple[bytes, ...] = (), keeps: bool = False, **options: Any) -> bytes:
    call_id = number.to_bytes(16, "big")
    row = (call_id, "method", b"", needs, (), tuple(options.items()) or None) if needs or options else (call_id, "method", b"")
    client.calls.call(ACTOR, row, 1, retries, keeps)
    return call_id


def call_unordered(client: Client, number: int, needs: tuple[bytes, ...] = (), retries: int = 0) -> bytes:
    """A call of an actor that runs several at once."""
    call_id = number.to_bytes(16, "big")
    row = (call_id, "method", b"", needs, (), None) if needs else (call_id, "method", b"")
    client.calls.call(ACTOR, row, 1, retries, unordered=True)
    return call_id


def meet(client: Client) -> None:
    """Have the client learn where the actor lives, before anything is called."""
    client.calls.meet(ACTOR)
    lives(client, HOME)
    client.take_effects(0.0)


def test_the_only_call_in_flight_is_sent_first(client: Client) -> None:
    meet(client)
    assert client.take_first() is None, "there is none"
    client.put(b"v" * 20, b"value", (), False)
    call(client, 1)
    first = client.take_first()
    assert first is not None
    assert (first.to, [row[0] for row in first.message.rows]) == (b"A" + HOME, [(1).to_bytes(16, "big")])
    assert [type(effect.message) for effect in client.take_effects(0.0)] == [m.Put], "the call is not sent again"


def test_calls_wait_for_messages_that_must_precede_them(client: Client) -> None:
    meet(client)
    call(client, 1)
    call(client, 2)
    assert client.take_first() is None, "they leave together"
    assert sent(client) == [1, 2]
    call(client, 3, keeps=True)
    assert client.take_first() is None, "the actor is told first which outcomes are here"
    assert sent(client) == [3]
    client.calls.cancel((1).to_bytes(16, "big") + CALL_RETURN, "cancelled")
    call(client, 4)
    assert client.take_first() is None
    assert sent(client) == [4]


def lives(client: Client, home: bytes, state: int = ALIVE, executing: bytes = b"", failure: bytes = b"") -> None:
    client.step(0.0, b"L" + DAEMON, m.ActorLocations(((ACTOR, state, home, 0, False, executing, failure),)))


def messages_of(machine: Any, kind: type[Any]) -> list[Any]:
    return [effect.message for effect in machine.take_effects(0.0) if type(effect.message) is kind]


def sent(client: Client) -> list[int]:
    return [int.from_bytes(row[0], "big") for message in messages_of(client, m.Call) for row in message.rows]


def outcome(client: Client, call_id: bytes) -> tuple[str, Any]:
    entry = client.objects.lookup(call_id + CALL_RETURN)
    assert entry.status == FAILED
    kind, _, facts = unpack_failure(entry.data)
    return kind, dict(facts).get("outcome")


def test_calls_wait_for_the_actor_and_are_sent_in_order(client: Client) -> None:
    call(client, 1)
    call(client, 2)
    assert sent(client) == []
    lives(client, HOME)
    call(client, 3)
    assert sent(client) == [1, 2, 3]


def test_calls_behind_the_one_a_dead_process_ran_are_reported_as_not_run(client: Client) -> None:
    lives(client, HOME)
    first, second, third = (call(client, number) for number in (1, 2, 3))
    assert sent(client) == []  # The actor was not met before the first call.
    lives(client, HOME)
    assert sent(client) == [1, 2, 3]
    lives(client, b"", DEAD, second, pack_failure("ActorDiedError", "killed"))
    assert [outcome(client, each) for each in (first, second, third)] == [
        ("ActorDiedError", "unknown"),
        ("ActorDiedError", "unknown"),
        ("ActorDiedError", "not run"),
    ]


def test_a_repeated_call_that_may_have_run_is_never_reported_as_not_run(client: Client) -> None:
    again = call(client, 1, retries=1)
    lives(client, HOME)
    assert sent(client) == [1]
    lives(client, b"", CREATING)
    lives(client, b"", DEAD, b"", pack_failure("ActorDiedError", "no restart is left"))
    assert outcome(client, again) == ("ActorDiedError", "unknown")


def test_a_call_that_is_repeated_by_way_of_the_next_daemon_may_have_run(client: Client) -> None:
    """The actor is on another node, and dies before the repeated calls leave. The one that was made meanwhile has not run."""
    first = call(client, 1)
    lives(client, DAEMON)
    assert sent(client) == [1]
    client.step(0.0, b"L" + DAEMON, m.RepeatCalls(ACTOR))
    second = call(client, 2)
    lives(client, b"", DEAD, b"", pack_failure("ActorDiedError", "killed"))
    assert outcome(client, first) == ("ActorDiedError", "unknown")
    assert outcome(client, second) == ("ActorDiedError", "not run")


def test_repeated_calls_follow_the_word_that_those_before_are_void(client: Client) -> None:
    """A receipt for an outcome follows the calls: its actor does not know a call any more once that is acknowledged."""
    call(client, 1)
    lives(client, DAEMON)
    assert sent(client) == [1]
    call(client, 2)
    client.step(0.0, b"L" + DAEMON, m.RepeatCalls(ACTOR))
    client.step(0.0, b"L" + DAEMON, m.RequestReceipt(5))
    assert client.take_first() is None
    void, calls, receipt = [effect.message for effect in client.take_effects(0.0)]
    assert (void, receipt) == (m.CallsRepeated(ACTOR), m.Receipt(5))
    assert [int.from_bytes(row[0], "big") for row in calls.rows] == [1, 2]


def test_a_receipt_follows_what_was_sent_before_its_request(client: Client) -> None:
    done = call(client, 1)
    lives(client, DAEMON)
    assert sent(client) == [1]
    client.step(0.0, b"L" + DAEMON, m.Returned(((done, OK, (b"value",)),)))
    client.step(0.0, b"L" + DAEMON, m.RequestReceipt(5))
    assert messages_of(client, m.Receipt) == [m.Receipt(5)]


def test_a_call_that_the_dead_incarnation_returned_is_not_repeated(client: Client) -> None:
    again = call(client, 1, retries=-1)
    lives(client, HOME)
    assert sent(client) == [1]
    lives(client, b"", CREATING)
    client.step(0.0, CLIENT + HOME, m.Returned(((again, OK, (b"value",)),)))
    call(client, 2)
    lives(client, NEXT_HOME)
    assert sent(client) == [2]


def test_repeated_calls_of_different_tasks_do_not_wait_for_each_other(client: Client) -> None:
    large, others = b"p" * 16 + b"\x80\0\0\0", 1 << 64
    client.put(large, (4096, TOO_LARGE), (), False)
    call(client, 1, retries=-1, needs=(large,))
    lives(client, HOME)
    (question,) = messages_of(client, m.Query)
    client.step(0.0, b"L" + DAEMON, m.Answer(question.token, None, ""))
    call(client, others, retries=-1)
    assert sent(client) == [1, others]
    lives(client, b"", CREATING)
    lives(client, NEXT_HOME)
    effects = [effect.message for effect in client.take_effects(0.0)]
    (question,) = [message for message in effects if type(message) is m.Query]
    assert [row[0] for message in effects if type(message) is m.Call for row in message.rows] == [others.to_bytes(16, "big")]
    client.step(0.0, b"L" + DAEMON, m.Answer(question.token, None, ""))
    assert sent(client) == [1]


TASK, OTHER = b"t" * 16, b"u" * 16


def test_a_call_that_waits_for_its_argument_blocks_its_own_group_only(client: Client) -> None:
    meet(client)
    client.tasks.submit((TASK, b"f" * 16, b"", ()), 1)
    call(client, 1, needs=(TASK + FIRST_RETURN,), concurrency_group="io")
    call(client, 2, concurrency_group="io")
    call(client, 3)
    call(client, 4, concurrency_group="compute")
    assert sent(client) == [3, 4]
    client.step(0.0, b"L" + DAEMON, m.Results(((TASK, OK, (b"value",)),)))
    assert sent(client) == [1, 2]


def test_calls_of_a_concurrent_actor_are_sent_when_their_own_arguments_exist(client: Client) -> None:
    meet(client)
    for task in (TASK, OTHER):
        client.tasks.submit((task, b"f" * 16, b"", ()), 1)
    large, both = b"p" * 16 + b"\x80\0\0\0", (TASK + FIRST_RETURN, OTHER + FIRST_RETURN)
    client.put(large, (4096, TOO_LARGE), (), False)
    call_unordered(client, 1, both)
    call_unordered(client, 2, (OTHER + FIRST_RETURN,))
    call_unordered(client, 3, (large,))
    call_unordered(client, 4)
    effects = [effect.message for effect in client.take_effects(0.0)]
    assert [row[0][-1] for message in effects if type(message) is m.Call for row in message.rows] == [4]
    client.step(0.0, b"L" + DAEMON, m.Results(((TASK, OK, (b"value",)),)))
    assert sent(client) == [], "one of two is there"
    client.step(0.0, b"L" + DAEMON, m.Results(((OTHER, OK, (b"value",)),)))
    assert sorted(sent(client)) == [1, 2]
    (question,) = [message for message in effects if type(message) is m.Query]
    client.step(0.0, b"L" + DAEMON, m.Answer(question.token, None, ""))
    assert sent(client) == [3]
    assert client.calls.awaited == {}
    assert client.calls.delayed == {}


def test_calls_whose_arguments_are_reported_to_the_scheduler_do_not_scan_each_other(client: Client) -> None:
    class Queries(dict[int, list[bytes]]):
        def values(self) -> Any:
            raise AssertionError("all are looked at")

    meet(client)
    large = b"p" * 16 + b"\x80\0\0\0"
    client.put(large, (4096, TOO_LARGE), (), False)
    client.calls._confirmed_by = Queries()
    for number in range(3):
        call_unordered(client, number, (large,))
    effects = [effect.message for effect in client.take_effects(0.0)]
    call_unordered(client, 3, (large,))
    effects += [effect.message for effect in client.take_effects(0.0)]
    questions = [message for message in effects if type(message) is m.Query]
    assert len(questions) == 2, "one for all that leave in one frame"
    client.step(0.0, b"L" + DAEMON, m.Answer(questions[1].token, None, ""))
    assert sent(client) == [3]
    client.step(0.0, b"L" + DAEMON, m.Answer(questions[0].token, None, ""))
    assert sent(client) == [0, 1, 2]
    assert {each.recorded for each in client.calls._extras.values()} == {UNASKED}


def test_the_scheduler_query_follows_everything_that_the_calls_depend_on(client: Client) -> None:
    meet(client)
    results = [call(client, number) + CALL_RETURN for number in (1, 2)]
    client.take_effects(0.0)
    for number, result in enumerate(results, 3):
        call(client, number, contains=(result,))
    messages = [effect.message for effect in client.take_effects(0.0)]
    (question,) = [message for message in messages if type(message) is m.Query]
    expected = [row[0] for message in messages[: messages.index(question)] if type(message) is m.ExpectResults for row in message.rows]
    assert expected == results


def test_unordered_calls_that_wait_for_arguments_get_an_outcome_whatever_ends(client: Client) -> None:
    """Cancelled, failed with the argument, sent to the next process of the actor, and dead with it."""
    meet(client)
    client.tasks.submit((TASK, b"f" * 16, b"", ()), 1)
    client.tasks.submit((OTHER, b"f" * 16, b"", ()), 1)
    stopped, moved = call_unordered(client, 1, (TASK + FIRST_RETURN,)), call_unordered(client, 2, (TASK + FIRST_RETURN,))
    failed = call_unordered(client, 3, (OTHER + FIRST_RETURN,))
    after = call_unordered(client, 4, (failed + CALL_RETURN,))
    client.cancel((stopped + CALL_RETURN,), False, False)
    assert outcome(client, stopped)[0] == "TaskCancelledError"
    client.step(0.0, b"L" + DAEMON, m.Results(((OTHER, m.ERROR, (b"boom",)),)))
    assert [client.objects.lookup(each + CALL_RETURN).data for each in (failed, after)] == [b"boom", b"boom"]
    lives(client, b"", CREATING)
    client.step(0.0, b"L" + DAEMON, m.Results(((TASK, OK, (b"value",)),)))
    assert sent(client) == []
    lives(client, NEXT_HOME)
    assert sent(client) == [2]
    client.tasks.submit((b"w" * 16, b"f" * 16, b"", ()), 1)
    late = call_unordered(client, 5, (b"w" * 16 + FIRST_RETURN,))
    lives(client, b"", DEAD, moved, pack_failure("ActorDiedError", "killed"))
    assert [outcome(client, each) for each in (moved, late)] == [("ActorDiedError", "unknown"), ("ActorDiedError", "not run")]
    assert client.calls.awaited == client.calls.delayed == client.calls.pending == {}


def test_calls_behind_a_repeated_call_are_sent_once_that_one_has_returned(client: Client) -> None:
    large = b"p" * 16 + b"\x80\0\0\0"
    client.put(large, (4096, TOO_LARGE), (), False)
    first, _ = call(client, 1, retries=-1, needs=(large,)), call(client, 2, retries=-1)
    lives(client, HOME)
    (question,) = messages_of(client, m.Query)
    client.step(0.0, b"L" + DAEMON, m.Answer(question.token, None, ""))
    assert sent(client) == [1, 2]
    lives(client, b"", CREATING)
    lives(client, NEXT_HOME)
    (question,) = messages_of(client, m.Query)
    client.step(0.0, CLIENT + HOME, m.Returned(((first, OK, (b"value",)),)))
    assert sent(client) == [2]
    client.step(0.0, b"L" + DAEMON, m.Answer(question.token, None, ""))
    assert sent(client) == []


def test_a_cancelled_call_is_not_repeated(client: Client) -> None:
    stopped = call(client, 1, retries=-1)
    lives(client, HOME)
    assert sent(client) == [1]
    client.cancel((stopped + CALL_RETURN,), False, False)
    lives(client, b"", CREATING)
    lives(client, NEXT_HOME)
    assert sent(client) == []
    assert outcome(client, stopped)[0] == "TaskCancelledError"


def test_a_request_to_stop_a_call_outlives_the_daemon(client: Client) -> None:
    stopped = call(client, 1)
    lives(client, HOME)
    assert sent(client) == [1]
    client.cancel((stopped + CALL_RETURN,), False, False)
    client.connect(b"\x02daemon1")
    client.rejoin(REGISTER)
    assert messages_of(client, m.StopCall) == [m.StopCall(stopped, "cancelled")]


def test_a_request_to_stop_a_call_on_another_node_is_repeated_with_the_call(client: Client) -> None:
    """The daemon may have died before it passed the request on, or may not be there as the call is cancelled."""
    stopped, goes_on = call(client, 1), call(client, 2)
    lives(client, DAEMON)
    assert sent(client) == [1, 2]
    client.cancel((stopped + CALL_RETURN,), False, False)
    assert messages_of(client, m.StopRelayed) == [m.StopRelayed(ACTOR, stopped, "cancelled")]
    client.step(0.0, b"L" + DAEMON, m.RepeatCalls(ACTOR))
    repeated = [message for _, message in client.take_effects(0.0)]
    assert [type(each) for each in repeated] == [m.CallsRepeated, m.Call, m.StopRelayed]
    assert [row[0] for row in repeated[1].rows] == [stopped, goes_on]
    assert repeated[2] == m.StopRelayed(ACTOR, stopped, "cancelled")


def test_calls_after_a_kill_do_not_reach_the_killed_process(client: Client) -> None:
    """Also if this process receives only now where the actor lives: its death is under way."""
    client.calls.kill(ACTOR, True)
    late = call(client, 1)
    lives(client, HOME)
    assert sent(client) == []
    lives(client, b"", DEAD, b"", pack_failure("ActorDiedError", "killed"))
    assert outcome(client, late) == ("ActorDiedError", "not run")


def test_calls_of_an_actor_that_has_exited_do_not_run(client: Client) -> None:
    """It is not sent to the process that is to end. What was sent behind the last call has not begun, either."""
    before, last, behind = call(client, 1), call(client, 2), call(client, 3)
    lives(client, HOME)
    assert sent(client) == [1, 2, 3]
    unsent = call(client, 4)
    client.step(0.0, CLIENT + HOME, m.Returned(((last, m.FAILED, (left_for_good(ACTOR, "exit_actor"),)),)))
    late = call(client, 5)
    assert sent(client) == []
    lives(client, b"", DEAD, b"", left_for_good(ACTOR, "exit_actor"))
    assert outcome(client, before) == ("ActorDiedError", "unknown")
    assert [outcome(client, each) for each in (behind, unsent, late)] == [("ActorDiedError", "not run")] * 3
    assert client.calls.delayed == client.calls.pending == {}


def test_calls_beside_the_call_in_which_an_actor_exits_have_an_unknown_outcome(client: Client) -> None:
    """In a concurrency group, or where an actor runs several calls of one group at once."""
    meet(client)
    other = call(client, 1, concurrency_group="io")
    last, grouped, behind = call(client, 2), call(client, 3, concurrency_group="io"), call(client, 4)
    assert sent(client) == [1, 2, 3, 4]
    client.step(0.0, CLIENT + HOME, m.Returned(((last, m.FAILED, (left_for_good(ACTOR, "exit_actor"),)),)))
    lives(client, b"", DEAD, b"", left_for_good(ACTOR, "exit_actor"))
    assert [outcome(client, each)[1] for each in (other, grouped, behind)] == ["unknown", "unknown", "not run"]


@pytest.mark.parametrize("group", ["io", None])
def test_calls_behind_the_last_call_of_a_concurrent_actor_have_an_unknown_outcome(client: Client, group: str | None) -> None:
    meet(client)
    if group is None:
        last, behind = call_unordered(client, 1), call_unordered(client, 2)
    else:
        last, behind = (call(client, number, concurrency_group=group) for number in (1, 2))
    assert sent(client) == [1, 2]
    client.step(0.0, CLIENT + HOME, m.Returned(((last, m.FAILED, (left_for_good(ACTOR, "exit_actor"),)),)))
    lives(client, b"", DEAD, b"", left_for_good(ACTOR, "exit_actor"))
    assert outcome(client, behind) == ("ActorDiedError", "unknown")


def test_an_error_of_an_exited_actor_as_argument_does_not_end_the_called_actor(client: Client) -> None:
    meet(client)
    failed = call(client, 1)
    client.step(0.0, CLIENT + HOME, m.Returned(((failed, m.FAILED, (left_for_good(b"o" * 16, "exit_actor"),)),)))
    call(client, 2)
    assert sent(client)[-1:] == [2]


def test_an_argument_that_an_earlier_life_left_as_a_failure_does_not_end_the_present_one(client: Client) -> None:
    meet(client)
    last = call(client, 1)
    assert sent(client) == [1]
    needs_it, behind = call(client, 2, needs=(last + CALL_RETURN,)), call(client, 3)
    client.step(0.0, CLIENT + HOME, m.Returned(((last, m.FAILED, (left_for_good(ACTOR, "exit_actor"),)),)))
    lives(client, b"", CREATING)
    lives(client, NEXT_HOME)
    assert outcome(client, needs_it)[0] == "ActorDiedError"
    assert sent(client) == [3]
    assert list(client.calls.pending) == [behind]


def test_a_client_is_expectant_while_calls_wait_for_a_location_or_a_result(client: Client) -> None:
    """So that the process looks for it, whatever its program does meanwhile."""
    assert not client.calls.expectant
    first = call(client, 1)
    assert client.calls.expectant, "it waits to hear where the actor is"
    lives(client, HOME)
    assert not client.calls.expectant
    client.tasks.submit((b"t" * 16, b"f" * 16, b"", (first + CALL_RETURN,)), 1)
    assert client.calls.expectant, "a task waits for its result"
    client.step(0.0, CLIENT + HOME, m.Returned(((first, OK, (b"value",)),)))
    assert not client.calls.expectant


def test_a_result_that_a_new_daemon_has_recorded_may_be_promised(client: Client) -> None:
    """The process stays for it, and listens meanwhile."""
    first = call(client, 1)
    lives(client, HOME)
    client.connect(b"\x02daemon1")
    client.rejoin(REGISTER, ())
    assert not client.calls.expectant
    client.tasks.submit((b"t" * 16, b"f" * 16, b"", (first + CALL_RETURN,)), 1)
    assert client.calls.expectant
    client.step(0.0, CLIENT + HOME, m.Returned(((first, OK, (b"value",)),)))
    assert not client.calls.expectant


@pytest.mark.parametrize("returns", [1, 2])
@pytest.mark.parametrize("status", [OK, ERROR])
def test_a_result_that_came_after_its_last_ref_is_repeated_while_an_unfinished_row_names_it(
    client: Client, returns: int, status: int
) -> None:
    call_id, task = (1).to_bytes(16, "big"), b"t" * 16
    names = tuple(call_value(call_id, index) for index in range(returns))
    client.calls.call(ACTOR, (call_id, "method", b""), returns, 0)
    client.tasks.submit((task, b"f" * 16, b"", names), 1)
    client.dropped.extend(names)
    lives(client, HOME)
    assert sent(client) == [1]
    outputs = (b"value",) * returns if status == OK else (b"error",)
    client.step(0.0, CLIENT + HOME, m.Returned(((call_id, status, outputs),)))
    data = b"value" if status == OK else b"error"
    offers = [(name, status, data, ()) for name in names]
    assert [row for message in messages_of(client, m.OfferResults) for row in message.rows] == offers
    client.rejoin(REGISTER)
    assert [row for message in messages_of(client, m.OfferResults) for row in message.rows] == offers
    client.step(0.0, b"L" + DAEMON, m.Results(((task, OK, (b"done",)),)))
    client.rejoin(REGISTER)
    assert not {row[0] for message in messages_of(client, m.OfferResults) for row in message.rows} & set(names)


def test_a_kill_is_repeated_until_the_actor_is_dead(client: Client) -> None:
    client.calls.kill(ACTOR, True)
    assert messages_of(client, m.KillActor) == [m.KillActor(ACTOR, True)]
    client.rejoin(REGISTER)
    assert messages_of(client, m.KillActor) == [m.KillActor(ACTOR, True)]
    lives(client, b"", DEAD, b"", pack_failure("ActorDiedError", "killed"))
    client.rejoin(REGISTER)
    assert messages_of(client, m.KillActor) == []


@pytest.mark.parametrize("state", [ALIVE, DEAD])
def test_a_handle_is_released_when_the_last_call_returns_while_it_waits_to_be_repeated(client: Client, state: int) -> None:
    """An actor whose handle a caller retains never ends (simulator seed 9022216, with actors)."""
    first, last = call(client, 1, retries=-1), call(client, 2, retries=-1)
    lives(client, HOME)
    assert sent(client) == [1, 2]
    client.dropped += [ACTOR + FIRST_RETURN, first + CALL_RETURN, last + CALL_RETURN]
    lives(client, b"", CREATING)
    client.step(0.0, CLIENT + HOME, m.Returned(((last, OK, (b"value",)), (first, OK, (b"value",)))))
    client.take_effects(0.0)
    lives(client, NEXT_HOME if state == ALIVE else b"", state, b"", b"" if state == ALIVE else pack_failure("ActorDiedError", "killed"))
    client.take_effects(0.0)
    assert client.objects.entry(ACTOR + FIRST_RETURN) is None
    assert client.calls.delayed == client.calls.pending == client.calls.targets == {}


def test_a_call_whose_argument_failed_leaves_nothing_behind(client: Client) -> None:
    lives(client, HOME)
    bad = b"b" * 16
    client.tasks.submit((bad, b"f" * 16, b"", ()), 1)
    failed = call(client, 1, needs=(bad + FIRST_RETURN,))
    client.dropped.append(ACTOR + FIRST_RETURN)
    client.take_effects(0.0)
    lives(client, HOME)
    client.step(0.0, b"L" + DAEMON, m.Results(((bad, m.ERROR, (b"boom",)),)))
    assert client.objects.lookup(failed + CALL_RETURN).data == b"boom"
    assert [ACTOR + FIRST_RETURN in message.object_ids for message in messages_of(client, m.Release)] == [True]
    assert client.calls.targets == {}


def test_a_value_that_the_scheduler_has_of_a_failed_call_is_released_with_its_ref(client: Client) -> None:
    lost = call(client, 1)
    lives(client, HOME)
    lives(client, b"", DEAD, b"", pack_failure("ActorDiedError", "killed"))
    client.dropped.append(lost + CALL_RETURN)
    client.take_effects(0.0)
    client.step(0.0, b"L" + DAEMON, m.Returned(((lost, OK, (None,)),)))
    assert [lost + CALL_RETURN in message.object_ids for message in messages_of(client, m.Release)] == [True]


def test_a_logged_actor_receives_acknowledgements_before_repeated_calls(client: Client) -> None:
    lives(client, HOME)
    first, _, third = (call(client, number, LOGGED) for number in (1, 2, 3))
    lives(client, HOME)
    client.take_effects(0.0)
    client.step(0.0, CLIENT + HOME, m.Returned(((first, OK, (b"value",)),)))
    lives(client, b"", CREATING)
    lives(client, NEXT_HOME)
    messages = [effect.message for effect in client.take_effects(0.0) if effect.to[1:] == NEXT_HOME]
    assert messages == [
        m.OutcomesReceived(ACTOR, ((2).to_bytes(16, "big"), third), True),
        m.Call(ACTOR, 0, tuple((n.to_bytes(16, "big"), "method", b"") for n in (2, 3))),
    ]
    client.step(0.0, CLIENT + NEXT_HOME, m.Returned((((2).to_bytes(16, "big"), OK, (b"value",)), (third, OK, (b"value",)))))
    client.dropped.append(ACTOR + FIRST_RETURN)
    client.releases.settle()
    assert messages_of(client, m.OutcomesReceived) == [m.OutcomesReceived(ACTOR, ((2).to_bytes(16, "big"), third), False)], (
        "before it is forgotten"
    )


def test_calls_with_an_outcome_are_not_repeated_to_the_next_life(client: Client) -> None:
    lives(client, HOME)
    settled = call(client, 1, LOGGED)
    call(client, 2, LOGGED)
    lives(client, HOME)
    client.take_effects(0.0)
    lives(client, b"", CREATING)
    lives(client, NEXT_HOME)
    client.step(0.0, b"L" + DAEMON, m.Returned(((settled, OK, (b"value",)),)))
    assert sent(client) == [2]


def rows_sent(client: Client) -> list[tuple[int, Any]]:
    """Calls that leave: number, and options."""
    rows = [row for message in messages_of(client, m.Call) for row in message.rows]
    return [(int.from_bytes(row[0], "big"), row[5] if len(row) > 3 else None) for row in rows]


def test_an_actor_with_checkpoints_is_asked_for_outcomes_of_calls_without_retries(client: Client) -> None:
    """A checkpoint may have their outcome: it is unknown only where that is the truth."""
    lives(client, HOME)
    first, second, third = call(client, 1, keeps=True), call(client, 2, keeps=True, timeout=1.0), call(client, 3, keeps=True)
    lives(client, HOME)
    client.take_effects(0.0)
    lives(client, b"", CREATING)
    assert [client.objects.known(each + CALL_RETURN) for each in (first, second, third)] == [False] * 3
    fourth = call(client, 4, keeps=True)
    asked = [(1, (("ask", True),)), (2, (("timeout", 1.0), ("ask", True))), (3, (("ask", True),))]
    for home in (NEXT_HOME, HOME):
        lives(client, home)
        messages = [effect.message for effect in client.take_effects(0.0) if effect.to[1:] == home]
        assert messages[0] == m.OutcomesReceived(ACTOR, (first, second, third, fourth), True)
        rows = [row for message in messages[1:] for row in message.rows]
        fourth_asked = [(4, (("ask", True),))] if home == HOME else [(4, None)]
        assert [(int.from_bytes(row[0], "big"), row[5] if len(row) > 3 else None) for row in rows] == asked + fourth_asked
        lives(client, b"", CREATING)
    client.step(0.0, CLIENT + HOME, m.Returned(((first, OK, (b"value",)),)))
    lives(client, b"", DEAD, b"", pack_failure("ActorDiedError", "no restart is left"))
    assert client.objects.lookup(first + CALL_RETURN).data == b"value"
    assert {outcome(client, each) for each in (second, third, fourth)} == {("ActorDiedError", "unknown")}


def test_an_actor_with_checkpoints_gets_repeated_calls_up_to_their_retries(client: Client) -> None:
    lives(client, HOME)
    call(client, 1, retries=1, keeps=True)
    lives(client, HOME)
    assert rows_sent(client) == [(1, None)]
    lives(client, NEXT_HOME)
    assert rows_sent(client) == [(1, None)]
    lives(client, HOME)
    assert rows_sent(client) == [(1, (("ask", True),))]


def test_acknowledgements_go_to_logged_actors_in_batches_and_to_no_others(client: Client) -> None:
    lives(client, HOME)
    for retries in (-1, LOGGED):
        calls = [call(client, 1000 * -retries + number, retries) for number in range(ACKNOWLEDGE_EVERY + 1)]
        lives(client, HOME)
        client.take_effects(0.0)
        for index, each in enumerate(calls):
            client.step(0.0, CLIENT + HOME, m.Returned(((each, OK, (b"value",)),)))
            expected = [m.OutcomesReceived(ACTOR, tuple(calls[:-1]), False)] if index == ACKNOWLEDGE_EVERY - 1 and retries == LOGGED else []
            assert messages_of(client, m.OutcomesReceived) == expected


# -- the actor's side --


@pytest.fixture
def worker() -> Worker:
    made = Worker(WORKER + HOME, Config.of({}))
    made.connect(DAEMON)
    made.step(0.0, b"L" + DAEMON, m.Functions(((b"f" * 16, "Counter", b"", ()),)))
    made.mailbox.actors[ACTOR] = ((ACTOR, b"f" * 16, b"", ()), 3)
    return made


def give(worker: Worker, *numbers: int) -> None:
    rows = tuple((number.to_bytes(16, "big"), "method", b"") for number in numbers)
    worker.step(0.0, CLIENT + ME, m.Call(ACTOR, 3, rows))


def run(worker: Worker, outputs: tuple[Any, ...] = (b"value",), contained: tuple[Any, ...] = ()) -> bytes:
    item = worker.begin()
    assert item is not None
    worker.finish_call(item, OK, outputs, contained, 0.0, 0.001)  # type: ignore[arg-type]
    identifier: bytes = item.row[0]
    return identifier


def answered(worker: Worker, status: int = OK, outputs: tuple[Any, ...] = (b"value",)) -> Any:
    """What may leave at once when the next call ends."""
    item = worker.begin()
    assert item is not None
    answer = worker.answer(item, status, outputs)
    worker.finish_call(item, status, outputs, (), 0.0, 0.001, answered=answer is not None)  # type: ignore[arg-type]
    return answer


def test_the_outcome_of_a_lone_call_is_sent_first_and_once(worker: Worker) -> None:
    give(worker, 1)
    answer = answered(worker)
    assert (answer.to, answer.message) == (CLIENT + ME, m.Returned((((1).to_bytes(16, "big"), OK, (b"value",)),)))
    assert messages_of(worker, m.Returned) == []
    assert worker.unreported == 0


def test_the_outcome_of_a_lone_call_of_another_node_is_sent_first_and_retained(worker: Worker) -> None:
    """It goes to the scheduler, which relays it, and is repeated to the next one until it is recorded."""
    row, caller = ((1).to_bytes(16, "big"), "method", b""), remote_caller(ME, b"\2node A.")
    relayed = m.RelayedCalls(ACTOR, 3, (row,), caller, ())
    worker.step(0.0, LOCAL_SCHEDULER + DAEMON, relayed)
    answer = answered(worker)
    reported = m.CallOutcomes(((row[0], caller, OK, (b"value",), ()),))
    assert (answer.to, answer.message) == (LOCAL_SCHEDULER + DAEMON, reported)
    assert (messages_of(worker, m.CallOutcomes), worker.unreported) == ([], 0)
    worker.step(0.0, LOCAL_SCHEDULER + DAEMON, relayed)
    assert worker.begin() is None, "a call that comes again has run"
    assert worker.mailbox.unrecorded() == (reported,)
    worker.step(0.0, LOCAL_SCHEDULER + DAEMON, m.OutcomesRecorded((row[0],)))
    assert worker.mailbox.unrecorded() == ()


def test_the_outcome_of_a_call_of_another_node_with_options_leaves_behind_what_was_sent_before(worker: Worker) -> None:
    row, caller = ((1).to_bytes(16, "big"), "method", b"", (), (), (("contains", ()),)), remote_caller(ME, b"\2node A.")
    worker.step(0.0, LOCAL_SCHEDULER + DAEMON, m.RelayedCalls(ACTOR, 3, (row,), caller, ()))
    assert answered(worker) is None
    assert [len(message.rows) for message in messages_of(worker, m.CallOutcomes)] == [1]


def test_outcomes_are_sent_together_where_more_calls_wait(worker: Worker) -> None:
    give(worker, 1, 2)
    assert answered(worker) is None, "the next call is here already"
    assert answered(worker) is None, "the one before it has not left"
    assert [len(message.rows) for message in messages_of(worker, m.Returned)] == [2]


@pytest.mark.parametrize(("status", "outputs"), [(FAILED, (b"why",)), (OK, ((4096, 100_000),)), (OK, (b"one", b"two")), (OK, ())])
def test_outcomes_that_are_no_plain_value_go_through_the_scheduler(worker: Worker, status: int, outputs: tuple[Any, ...]) -> None:
    give(worker, 1)
    assert answered(worker, status, outputs) is None
    assert len(messages_of(worker, m.Returned)) + len(messages_of(worker, m.CallOutcomes)) <= 1
    assert worker.mailbox.unsent is False


def test_nothing_is_sent_to_a_caller_that_has_gone(worker: Worker) -> None:
    give(worker, 1)
    worker.step(0.0, b"L" + DAEMON, m.CallerGone(ME))
    assert answered(worker) is None


def test_an_abandoned_call_is_not_answered_twice(worker: Worker) -> None:
    give(worker, 1)
    item = worker.begin()
    assert item is not None
    worker.step(0.0, CLIENT + ME, m.StopCall(item.row[0], "cancelled"))
    assert worker.answer(item, OK, (b"value",)) is None, "it is to be stopped"
    assert worker.abandon(item.row[0])
    worker.interrupts.clear()
    assert [message.rows[0][1] for message in messages_of(worker, m.Returned)] == [FAILED]
    assert worker.answer(item, OK, (b"value",)) is None


def test_a_call_carries_the_attempt_of_its_actor(worker: Worker) -> None:
    give(worker, 1)
    item = worker.begin()
    assert item is not None
    assert item.attempt == 3, "what a call that is made again submits has names of its own"


def test_outcomes_that_others_need_are_repeated_until_they_are_recorded(worker: Worker) -> None:
    give(worker, 1)
    call_id = run(worker, ((4096, 100_000),))
    (reported,) = messages_of(worker, m.CallOutcomes)
    assert reported.rows == ((call_id, ME, OK, ((4096, 100_000),), ()),)
    assert not worker.mailbox.settled
    assert reported in worker.running(), "a new daemon may not have heard it"
    worker.step(0.0, b"L" + DAEMON, m.OutcomesRecorded((call_id,)))
    assert messages_of(worker, m.Returned) == [m.Returned(((call_id, OK, (None,)),))]
    assert worker.mailbox.settled
    assert not any(type(message) is m.CallOutcomes for message in worker.running())


def test_recorded_values_without_refs_inside_are_sent_to_the_caller(worker: Worker) -> None:
    give(worker, 1)
    call_id = run(worker, (b"plain", b"box"), ((), (call_value(ACTOR, 0),)))
    worker.take_effects(0.0)
    worker.step(0.0, b"L" + DAEMON, m.OutcomesRecorded((call_id,)))
    assert messages_of(worker, m.Returned) == [m.Returned(((call_id, OK, (b"plain", None)),))]


def test_an_error_with_refs_inside_is_recorded_by_the_scheduler(worker: Worker) -> None:
    give(worker, 1)
    error = with_refs(b"boom", (call_value(ACTOR, 0),))
    item = worker.begin()
    assert isinstance(item, Invocation)
    worker.finish_call(item, ERROR, (error,), (), 0.0, 0.1)
    assert messages_of(worker, m.CallOutcomes) == [m.CallOutcomes(((item.row[0], ME, ERROR, (error,), ()),))]


def test_the_caller_holds_refs_inside_an_error_and_releases_its_record(client: Client) -> None:
    inside = call_value(ACTOR, 7)
    for number, kept in enumerate((True, False)):
        call_id = call(client, number)
        if not kept:
            client.dropped.append(call_value(call_id, 0))
        lives(client, HOME)
        client.take_effects(0.0)
        client.step(0.0, b"L" + DAEMON, m.Returned(((call_id, ERROR, (with_refs(b"boom", (inside,)),)),)))
        if kept:
            assert messages_of(client, m.Hold) == [m.Hold((inside,))]
            client.dropped.append(call_value(call_id, 0))
            assert messages_of(client, m.Release) == [m.Release((call_value(call_id, 0), inside))]
        else:
            assert messages_of(client, m.Release) == [m.Release((call_value(call_id, 0),))]


def test_an_error_with_refs_inside_made_by_the_caller_is_offered_to_dependents(client: Client) -> None:
    """The scheduler has recorded no outcome of a call of an actor that could not be made (simulator seed 226, with actors)."""
    call_id = call(client, 0)
    result, inside = call_value(call_id, 0), call_value(ACTOR, 7)
    lives(client, b"", DEAD, b"", pack_failure("ActorDiedError", "it raised", (("cause", with_refs(b"boom", (inside,))),)))
    assert messages_of(client, m.Hold) == [m.Hold((inside,))]
    client.calls.results.share((result,))
    (offer,) = messages_of(client, m.OfferResults)
    assert [row[:2] for row in offer.rows] == [(result, FAILED)]


def test_a_request_to_stop_a_call_may_overtake_it(worker: Worker) -> None:
    worker.step(0.0, CLIENT + ME, m.StopCall((2).to_bytes(16, "big"), "cancelled"))
    give(worker, 1, 2)
    run(worker)
    assert worker.begin() is None
    (returned,) = messages_of(worker, m.Returned)
    stopped = next(row for row in returned.rows if row[1] == FAILED)
    assert stopped[0] == (2).to_bytes(16, "big")
    assert unpack_failure(stopped[2][0])[0] == "TaskCancelledError"


def give_timed(worker: Worker, *numbers: int, timeout: float, now: float = 0.0) -> None:
    rows = tuple((number.to_bytes(16, "big"), "method", b"", (), (), (("timeout", timeout),)) for number in numbers)
    worker.step(now, CLIENT + ME, m.Call(ACTOR, 3, rows))


def test_deadlines_of_ended_calls_are_removed(worker: Worker) -> None:
    give_timed(worker, 1, 2, timeout=5.0)
    assert worker.next_deadline() == 5.0
    run(worker)
    worker.step(0.0, CLIENT + ME, m.StopCall((2).to_bytes(16, "big"), "cancelled"))
    assert worker.next_deadline() is None
    worker.tick(6.0)
    assert worker.interrupts == {}
    give_timed(worker, 3, timeout=1.0, now=6.0)
    waits = worker.begin()
    give_timed(worker, 4, timeout=3.0, now=6.0)
    worker.tick(8.0)
    assert list(worker.interrupts) == [waits.row[0]], "and those that have not are stopped, each in its time"
    assert worker.next_deadline() == 9.0


def test_a_deadline_far_off_takes_no_room_once_its_call_has_ended(worker: Worker) -> None:
    give_timed(worker, 0, timeout=1.0)
    first = worker.begin()  # Its own comes before those of all the others.
    worker.move_beside(first)  # type: ignore[arg-type]
    for number in range(1, 10_000):
        give_timed(worker, number, timeout=3600.0)
        run(worker)
    assert len(worker.mailbox.deadlines) < 2000
    assert worker.next_deadline() == 1.0


def test_a_call_that_does_not_stop_has_an_outcome_for_its_caller(worker: Worker) -> None:
    """Once, whatever it returns in the end; those behind it wait for that."""
    give(worker, 1, 2)
    item = worker.begin()
    assert item is not None
    first, second = item.row[0], (2).to_bytes(16, "big")
    assert not worker.abandon(first), "nobody wants it stopped"
    worker.step(0.0, CLIENT + ME, m.StopCall(first, "timeout"))
    assert worker.abandon(first)
    (returned,) = messages_of(worker, m.Returned)
    assert [(row[0], row[1]) for row in returned.rows] == [(first, FAILED)]
    assert unpack_failure(returned.rows[0][2][0])[0] == "TaskTimeoutError"
    assert worker.abandon(first)
    assert messages_of(worker, m.Returned) == [], "once"
    worker.interrupts[first] = (3, LEFT)
    assert not worker.abandon(first), "the end of the actor is told of by others"
    worker.finish_call(item, OK, (b"after all",), (), 0.0, 0.001)  # type: ignore[arg-type]
    assert worker.abandoned == set()
    run(worker)
    (returned,) = messages_of(worker, m.Returned)
    assert [row[0] for row in returned.rows] == [second]


def test_outcomes_for_a_dead_caller_are_dropped(worker: Worker) -> None:
    give(worker, 1)
    run(worker)
    worker.step(0.0, b"L" + DAEMON, m.CallerGone(ME))
    assert messages_of(worker, m.Returned) == []
    assert worker.unreported == 0, "nothing keeps the process awake"
    give(worker, 2)
    run(worker)
    assert messages_of(worker, m.Returned) == [], "what was on its way is run, and nobody is told"
    assert not worker.has_unsent


def test_an_actor_is_refused_to_wait_for_its_own_call_unless_that_has_ended() -> None:
    """The next call may run before the news of its outcome has come."""
    worker = Worker(WORKER + HOME, Config.of({}))
    worker.connect(DAEMON)
    worker.functions[b"f" * 16] = (b"f" * 16, "Actor", b"", ())
    worker.mailbox.actors[ACTOR] = ((ACTOR, b"f" * 16, b"", ()), 0)
    own, other = (number.to_bytes(16, "big") for number in (1, 2))
    worker.step(0.0, CLIENT + HOME, m.Call(ACTOR, 0, ((own, "method", b""),)))
    worker.step(0.0, CLIENT + ME, m.Call(ACTOR, 0, ((other, "method", b""),)))
    first: Any = worker.begin()
    wanted, here = (own + CALL_RETURN, b"o" * 20), {own + CALL_RETURN: ACTOR}.get
    assert worker.refused(first, wanted, 2, here)
    assert not worker.refused(first, wanted, 1, here)
    assert not worker.refused(first, wanted, 0, here)
    worker.finish_call(first, OK, (b"value",), (), 0.0, 0.0)
    second: Any = worker.begin()
    assert not worker.refused(second, wanted, 2, here)
    assert [message.rows for message in messages_of(worker, m.Returned)] == [((own, OK, (b"value",)),)]
    worker.mailbox.forget_answered({own: None})
    assert not worker.refused(second, wanted, 2, here), "it is on its way"


def test_a_call_lasts_until_it_runs_unless_something_may_end_it_earlier(client: Client) -> None:
    client.calls.meet(ACTOR)
    lives(client, HOME)
    plain, limited, stream = call(client, 1), call(client, 2, timeout=5.0), call(client, 3, stream=0)
    here = {ACTOR: ((), 0)}
    calls = client.calls
    assert calls.lasting(plain + CALL_RETURN, here) == ACTOR
    assert calls.lasting(plain + CALL_RETURN, {}) == ACTOR
    assert calls.lasting(plain + CALL_RETURN, {ACTOR: ((), 1)}) is None, "it was called in an earlier life"
    assert calls.lasting(limited + CALL_RETURN, here) is None
    assert calls.lasting(stream + CALL_RETURN, here) == ACTOR
    assert calls.lasting(object_id(stream, 1), here) is None, "it may be there before the end"
    assert not calls.may_end((plain + CALL_RETURN, stream + CALL_RETURN))
    assert calls.may_end((plain + CALL_RETURN, limited + CALL_RETURN))
    client.step(0.0, CLIENT + HOME, m.Returned(((limited, OK, (b"value",)),)))
    assert not calls.may_end((limited + CALL_RETURN,))
    assert calls.cancel(plain + CALL_RETURN, "cancelled")
    assert calls.may_end((plain + CALL_RETURN,))
    assert calls.lasting(plain + CALL_RETURN, here) is None
    client.calls.kill(ACTOR, False)
    assert calls.lasting(stream + CALL_RETURN, here) is None
