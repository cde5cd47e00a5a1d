"""The client alone: what it sends, in which order, and what it retains for how long."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from client_alone import FUNCTION, JOB, NAMER, REGISTER, receive, sent_by, submit
from client_alone import client as client  # a fixture

from zfabric.machines.client.machine import Client
from zfabric.machines.client.outbox import Outbox
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FIRST_RETURN, Namer, first_attempt, next_attempt, object_id


def again(client: Client, *running: Any) -> dict[type[Any], Any]:
    """What the client sends to the next incarnation of the daemon, by kind."""
    client.connect(b"\x02daemon1")
    client.rejoin(REGISTER, running)
    messages = sent_by(client)
    found: dict[type[Any], list[Any]] = {}
    for message in messages:
        rows = message[0] if message and isinstance(message[0], tuple) and type(message) is not m.Cancel else [message]
        found.setdefault(type(message), []).extend(rows)
    return found


def test_a_restarted_scheduler_receives_that_an_actor_exits_ahead_of_the_query_that_it_waits_for(client: Client) -> None:
    actor = NAMER.child()
    client.send(m.ActorExiting(actor))
    client.queries.ask(client.queries.token(), "nothing", ())
    sent_by(client)
    client.connect(b"\x02daemon1")
    client.rejoin(REGISTER)
    again = [message for message in sent_by(client) if type(message) in (m.ActorExiting, m.Query)]
    assert [type(message) for message in again] == [m.ActorExiting, m.Query]
    assert again[0].actor_id == actor


def test_refs_that_were_passed_on_are_repeated_to_the_next_daemon_for_a_while(client: Client) -> None:
    ended, running, put = submit(client), submit(client), NAMER.put()
    client.put(put, b"value", (), False)
    receive(client, m.Results(((ended, m.OK, (b"small",)),)))
    results = (ended + FIRST_RETURN, running + FIRST_RETURN)
    client.pass_on((*results, put))
    client.dropped.extend((*results, put))
    assert m.Release((put,)) in sent_by(client), "nothing makes it again: it is with the daemon alone"
    for _ in range(2):
        found = again(client)
        assert found[m.OfferResults] == [(results[0], m.OK, b"small", ())]
        assert [row[0] for row in found[m.Submit]] == [running]
        assert set(found[m.Hold]) == set(results)
        client.rest()
    assert {found for message in sent_by(client) for found in message.object_ids} == set(results), "released"
    assert m.OfferResults not in again(client)


def test_a_durable_value_is_put_again_until_it_is_committed(client: Client) -> None:
    value = NAMER.put()
    client.put(value, b"value", (), True)
    assert m.Put(((value, b"value", (), True),)) in sent_by(client)
    for committed in (False, True):
        if committed:
            receive(client, m.PutCommitted((value,), ""))
        client.connect(b"\x02daemon1")
        client.rejoin(REGISTER)
        again = sent_by(client)
        assert (m.Put(((value, b"value", (), True),)) in again) is not committed
        offered = [row for message in again if type(message) is m.OfferResults for row in message.rows]
        assert offered == ([(value, m.OK, b"value", ())] if committed else [])
        assert m.Hold((value,)) in again


def test_messages_are_sent_in_the_order_of_the_operations(client: Client) -> None:
    first = submit(client)
    client.put(NAMER.put(), b"value", (), False)
    second = submit(client, first + FIRST_RETURN)
    client.dropped.append(first + FIRST_RETURN)
    assert [type(message) for message in sent_by(client)] == [m.Submit, m.Put, m.Submit, m.Release]
    third, fourth = submit(client), submit(client)
    assert sent_by(client) == [m.Submit(((third, FUNCTION, b"arguments", ()), (fourth, FUNCTION, b"arguments", ())))]
    assert client.unfinished == 4
    assert second != third


@pytest.mark.parametrize("act", [Client.take_effects, lambda client, now: client.releases.settle()])
def test_an_appended_task_is_submitted_before_its_value_is_dropped(client: Client, act: Any) -> None:
    row = (NAMER.child(), FUNCTION, b"arguments", ())
    client.submitted.append((row, None))
    assert client.has_unsent
    assert client.urgent
    client.dropped.append(row[0] + FIRST_RETURN)
    effects = list(act(client, 0.0) or ()) + client.take_effects(0.0)
    assert [effect.message for effect in effects] == [m.Submit((row,)), m.Release((row[0] + FIRST_RETURN,))]
    receive(client, m.Results(((row[0], m.OK, (b"value",)),)))
    assert client.entries == {}
    assert client.unfinished == 0


def test_a_lone_task_for_another_node_is_sent_ahead_of_releases_and_of_nothing_else(client: Client) -> None:
    elsewhere = {"strategy": (("hard", "", "in", ("0102",)),)}
    first = submit(client, **elsewhere)
    sent_by(client)
    client.dropped.append(first + FIRST_RETURN)
    submit(client, **elsewhere)
    lone = client.take_first()
    assert lone is not None
    assert type(lone.message) is m.Submit
    client.releases.settle()
    submit(client, **elsewhere)
    assert client.take_first() is not None, "what was released is behind it"
    assert [type(each) for each in sent_by(client)] == [m.Release]
    assert client.take_first() is None
    client.put(b"o" * 20, b"value", (), False)
    submit(client, **elsewhere)
    assert client.take_first() is None, "what was put before may be named"
    assert [type(each) for each in sent_by(client)] == [m.Put, m.Submit]
    submit(client, b"o" * 20, **elsewhere)
    assert client.take_first() is None, "it has a dependency"


def test_an_appended_call_is_sent(client: Client) -> None:
    row = (NAMER.child(), "method", b"arguments")
    client.submitted.append((row, (b"a" * 16, 0, False, False)))
    client.take_effects(0.0)
    assert client.calls.count(b"a" * 16) == 1
    assert client.unfinished == 1


def test_the_row_of_large_values_is_retained_while_one_of_them_is_held(client: Client) -> None:
    task = submit(client, returns=200, num_returns=200)
    receive(client, m.Results(((task, m.OK, (None,) * 200),)))
    client.dropped.extend(object_id(task, index) for index in range(150))
    assert [row[0] for row in again(client)[m.Submit]] == [task]
    client.references.add(object_id(task, 3))  # It was inside another value.
    client.dropped.extend(object_id(task, index) for index in range(150, 200))
    assert [row[0] for row in again(client)[m.Submit]] == [task]
    client.dropped.append(object_id(task, 3))
    assert m.Submit not in again(client)
    assert client.retained.values == {}


def test_refs_are_counted_in_the_process_and_reported_as_a_set(client: Client) -> None:
    borrowed = object_id(b"t" * 16)
    client.references.add(borrowed)
    client.references.add(borrowed)
    assert sent_by(client) == [m.Hold((borrowed,))]
    client.dropped.append(borrowed)
    assert sent_by(client) == []
    client.dropped.append(borrowed)
    assert sent_by(client) == [m.Release((borrowed,))]


def test_a_ref_that_comes_back_while_its_task_runs_is_held_again(client: Client) -> None:
    task = submit(client)
    client.dropped.append(task + FIRST_RETURN)
    sent_by(client)
    client.references.add(task + FIRST_RETURN)
    assert sent_by(client) == [m.Hold((task + FIRST_RETURN,))]


def test_releases_from_finalizers_can_be_held_back(client: Client) -> None:
    task = submit(client)
    client.dropped.append(task + FIRST_RETURN)
    assert [type(effect.message) for effect in client.take_before_releases()] == [m.Submit]  # type: ignore[union-attr]
    assert [type(message) for message in sent_by(client)] == [m.Release]


def test_outcomes_are_pushed_large_ones_are_fetched_once(client: Client) -> None:
    small, large = submit(client), submit(client)
    sent_by(client)
    receive(client, m.Results(((small, m.OK, (b"value",)), (large, m.OK, (None,)))))
    assert client.objects.at_hand(small + FIRST_RETURN)
    assert client.objects.known(large + FIRST_RETURN)
    assert not client.objects.at_hand(large + FIRST_RETURN)
    client.objects.want((small + FIRST_RETURN, large + FIRST_RETURN))
    client.objects.want((large + FIRST_RETURN,))
    assert sent_by(client) == [m.Fetch((large + FIRST_RETURN,))]
    receive(client, m.Objects(((large + FIRST_RETURN, m.OK, (4096, 100), ()),)))
    assert client.objects.at_hand(large + FIRST_RETURN)
    assert client.unfinished == 0


def test_a_pin_is_released_without_refs_and_views(client: Client) -> None:
    task = submit(client)
    identifier = task + FIRST_RETURN
    receive(client, m.Results(((task, m.OK, (None,)),)))
    receive(client, m.Objects(((identifier, m.OK, (4096, 100), ()),)))
    receive(client, m.Objects(((identifier, m.OK, (4096, 100), ()),)))
    client.pins.view(identifier)
    client.dropped.append(identifier)
    assert m.Unpin not in {type(message) for message in sent_by(client)}
    client.unviewed.append(identifier)
    assert sent_by(client) == [m.Unpin((identifier, identifier))]  # one for each telling
    assert not client.pins.counts


def test_a_place_that_arrives_too_late_is_unpinned(client: Client) -> None:
    receive(client, m.Objects(((object_id(b"t" * 16), m.OK, (4096, 100), ()),)))
    assert sent_by(client) == [m.Unpin((object_id(b"t" * 16),))]


def test_a_recall_is_declined_while_a_view_lives(client: Client) -> None:
    task = submit(client)
    identifier = task + FIRST_RETURN
    receive(client, m.Results(((task, m.OK, (None,)),)))
    receive(client, m.Objects(((identifier, m.OK, (4096, 100), ()),)))
    sent_by(client)
    client.pins.view(identifier)
    receive(client, m.RecallPins((identifier,)))
    assert sent_by(client) == []
    client.unviewed.append(identifier)
    sent_by(client)
    receive(client, m.RecallPins((identifier,)))
    assert sent_by(client) == [m.Unpin((identifier,))]
    assert not client.objects.at_hand(identifier)


def test_a_recall_of_many_objects_scans_the_waits_once(client: Client) -> None:
    class Wanted(list[bytes]):
        def __contains__(self, each: object) -> bool:
            raise AssertionError("it is looked through")

    tasks = [submit(client) for _ in range(3)]
    first, second, other = (task + FIRST_RETURN for task in tasks)
    receive(client, m.Results(tuple((task, m.OK, (None,)) for task in tasks)))
    receive(client, m.Objects(tuple((each, m.OK, (4096 * index, 100), ()) for index, each in enumerate((first, second, other)))))
    sent_by(client)
    client.objects.gets[1] = Wanted((first, second))
    receive(client, m.RecallPins((first, second, other)))
    assert sent_by(client) == [m.Unpin((other,))]


def test_an_unwanted_reservation_is_returned(client: Client) -> None:
    asked, answered = client.reservations.reserve(1000, True, 1.0), client.reservations.reserve(1000, True, 1.0)
    sent_by(client)
    client.reservations.cancel(asked)
    receive(client, m.Granted(asked, 4096, 1088))
    receive(client, m.Granted(answered, 8192, 1088))
    client.reservations.cancel(answered)
    assert sent_by(client) == [m.ReturnGrant(4096, 0), m.ReturnGrant(8192, 0)]
    assert not client.reservations.answers


def test_the_extent_of_an_unwritten_value_is_returned_unless_it_is_part_of_a_grant(client: Client) -> None:
    alone = client.reservations.grants.add_exact(4096, 1088)
    client.reservations.grants.add(8192, 2**20)
    shared = client.reservations.allocate(1000)
    assert shared is not None
    client.reservations.abandon(shared)
    client.reservations.abandon(alone)
    assert sent_by(client) == [m.ReturnGrant(4096, 0)]
    assert client.reservations.allocate(1000) == shared


def fill(client: Client, size: int) -> list[int]:
    """Write values of ``size`` bytes for as long as grants have room and no new one is asked for: where."""
    offsets: list[int] = []
    while not client.reservations.ahead and (offset := client.reservations.allocate(size)) is not None:
        client.reservations.finished(offset)
        offsets.append(offset)
    return offsets


def test_a_writer_that_fills_grants_gets_the_next_one_in_advance(client: Client) -> None:
    grant = client.config.grant_bytes
    client.reservations.grants.add(0, grant)
    first = fill(client, 2**20)
    assert len(first) == 4, "half of a first grant"
    (request,) = sent_by(client)
    assert request == m.Reserve(client.reservations.ahead, 2**20, grant, request.patience)
    receive(client, m.Granted(client.reservations.ahead, grant, grant))
    assert not client.reservations.ahead
    assert not client.reservations.answers
    first += fill(client, 2**20)
    assert len(first) == 8, "the first is used up, and one of the second"
    returned, request = sent_by(client)
    assert returned == m.ReturnGrant(0, first[-2] + 2**20)
    assert request == m.Reserve(client.reservations.ahead, 2**20, 2 * grant, request.patience)
    receive(client, m.Granted(client.reservations.ahead, 2 * grant, grant))
    assert len(fill(client, 2**20)) == 1, "from here on, two grants' worth are left when the next one is asked for"
    assert sent_by(client) == [m.Reserve(client.reservations.ahead, 2**20, 4 * grant, request.patience)]
    offsets = [client.reservations.allocate(2**20) or 0 for _ in range(5 + 7)]
    assert offsets == [
        *range(grant + 64 + 2 * (2**20 + 64), 2 * grant - 2**20, 2**20 + 64),
        *range(2 * grant + 64, 3 * grant - 2**20, 2**20 + 64),
    ]


def test_a_full_grant_is_returned_at_once(client: Client) -> None:
    size = 2**20
    client.reservations.grants.add(0, 2 * (size + 64))
    first, second = client.reservations.allocate(size), client.reservations.grants.allocate(size)
    sent_by(client)
    assert first is not None
    assert second is not None
    client.reservations.finished(second)
    assert sent_by(client) == [], "the first is still being written"
    client.reservations.finished(first)
    assert sent_by(client) == [m.ReturnGrant(0, 2 * (size + 64))]
    assert client.reservations.rows() == ()


def write_much(client: Client) -> int:
    """Write values one after the other, each grant behind the last, until requested grants grow no more; return the last offset."""
    grant = client.config.grant_bytes
    begin, end = 0, grant
    wishes: list[int] = []
    client.reservations.grants.add(begin, grant)
    while wishes[-2:] != [8 * grant] * 2:
        fill(client, 2**20)
        wishes.append(client.reservations.requests[client.reservations.ahead].wish)
        begin, end = end, end + wishes[-1]
        receive(client, m.Granted(client.reservations.ahead, begin, wishes[-1]))
    assert wishes == [grant, 2 * grant, 4 * grant, 8 * grant, 8 * grant]
    sent_by(client)
    return begin


def test_a_frequent_writer_requests_larger_grants_for_larger_values(client: Client) -> None:
    large = 4 * client.config.grant_bytes - 64
    assert not client.reservations.shares(large)
    write_much(client)
    assert client.reservations.shares(large)
    assert not client.reservations.shares(large + 1)


def test_the_first_large_value_has_its_own_extent_and_later_ones_share(client: Client) -> None:
    grant = client.config.grant_bytes
    assert not client.reservations.shares(2 * grant)
    client.reservations.reserve(2 * grant, True, 9.0)
    assert sent_by(client)[0].wish == 0
    assert client.reservations.shares(2 * grant)
    assert not client.reservations.shares(2 * grant + 1)


def test_a_process_that_writes_no_more_returns_its_spare_grants(client: Client) -> None:
    last = write_much(client)
    client.reservations.rest()
    assert sent_by(client) == [], "it may have written just now"
    offset = client.reservations.allocate(2**20)
    assert offset is not None
    client.reservations.rest()
    sent_by(client)
    client.reservations.rest()
    assert last in {row.offset for row in sent_by(client)}
    assert sum(size for _, size, used in client.reservations.rows() if not used) <= 8 * client.config.grant_bytes
    assert not client.reservations.shares(2 * client.config.grant_bytes)
    client.reservations.rest()
    assert sent_by(client) == []


@pytest.mark.parametrize("pressure", ["recalled", "refused"])
def test_requests_are_small_again_when_room_is_short(client: Client, pressure: str) -> None:
    write_much(client)
    if pressure == "recalled":
        receive(client, m.RecallGrant(-1))
    else:
        receive(client, m.NoSpace(client.reservations.reserve(2**20, False, 9.0), "full", "no room"))
    sent_by(client)
    client.reservations.reserve(2**20, False, 9.0)
    assert sent_by(client)[0].wish == client.config.grant_bytes


def test_requests_in_advance_may_be_refused_or_abandoned_and_survive_the_daemon(client: Client) -> None:
    grant = client.config.grant_bytes
    client.reservations.grants.add(0, grant)
    fill(client, 2**20)
    client.reservations.grants.add(grant, grant)
    fill(client, 2**20)
    receive(client, m.NoSpace(client.reservations.ahead, "full", "no room"))
    assert not client.reservations.ahead
    fill(client, 2**20)
    token = client.reservations.ahead
    assert token
    assert [row.token for row in again(client)[m.Reserve]] == [token]
    client.reservations.cancel(token)
    receive(client, m.Granted(token, 2 * grant, grant))
    assert sent_by(client) == [m.ReturnGrant(2 * grant, 0)]


def test_rows_values_and_refs_are_repeated_to_a_restarted_scheduler(client: Client) -> None:
    done, waiting, dropped, large = submit(client), submit(client), submit(client), submit(client)
    borrowed = object_id(b"t" * 16)
    client.references.add(borrowed)
    client.objects.want((borrowed,))
    client.dropped.append(dropped + FIRST_RETURN)
    sent_by(client)
    receive(client, m.Results(((done, m.OK, (b"value",)), (large, m.OK, (None,)))))
    found = again(client)
    assert [row[0] for row in found[m.Export]] == [FUNCTION]
    assert found[m.OfferResults] == [(done + FIRST_RETURN, m.OK, b"value", ())]
    assert {row[0] for row in found[m.Submit]} == {waiting, dropped, large}
    assert set(found[m.Hold]) == {done + FIRST_RETURN, waiting + FIRST_RETURN, large + FIRST_RETURN, borrowed}
    assert found[m.Fetch] == [borrowed]


def test_objects_named_by_an_unfinished_row_are_retained_without_refs(client: Client) -> None:
    value = NAMER.put()
    client.put(value, b"value", (), False)
    task = submit(client, value)
    client.dropped.append(value)
    sent_by(client)
    found = again(client)
    assert found[m.OfferResults] == [(value, m.OK, b"value", ())]
    assert value not in found[m.Hold]
    receive(client, m.Results(((task, m.OK, (b"done",)),)))
    assert value not in {row[0] for row in again(client).get(m.OfferResults, ())}


@pytest.mark.parametrize("returns", [1, 2])
def test_a_failure_that_an_unfinished_row_needs_is_repeated_and_not_the_row_that_would_run_again(client: Client, returns: int) -> None:
    """Its task was cancelled: run again for the next daemon, it might never end."""
    failed = submit(client, returns=returns)
    names = [object_id(failed, index) for index in range(returns)]
    waiting = submit(client, *names)
    client.dropped.extend(names)
    sent_by(client)
    receive(client, m.Results(((failed, m.FAILED, (b"cancelled",)),)))
    found = again(client)
    assert [row[0] for row in found[m.Submit]] == [waiting]
    assert sorted(found[m.OfferResults]) == [(name, m.FAILED, b"cancelled", ()) for name in names]


def test_a_cancel_a_reservation_and_a_goodbye_survive_the_daemon(client: Client) -> None:
    task = submit(client)
    client.cancel((task + FIRST_RETURN,), True, False)
    client.dropped.append(task + FIRST_RETURN)
    token = client.reservations.reserve(1000, True, 9.0)
    client.send(m.Goodbye())
    sent_by(client)
    found = again(client)
    assert found[m.Reserve] == [m.Reserve(token, 1000, 0, 9.0)]
    assert m.Cancel in found
    assert m.Goodbye in found
    receive(client, m.Results(((task, m.FAILED, (b"cancelled",)),)))
    receive(client, m.Refused("JobEndedError", "it has ended"))
    assert client.farewell == ""
    assert m.Cancel not in again(client)


def test_granted_and_unused_room_is_claimed_after_a_restart(client: Client) -> None:
    token = client.reservations.reserve(1000, True, 9.0)
    receive(client, m.Granted(token, 4096, 1088))
    assert again(client)[m.GrantsHeld] == [(4096, 1088, 0)]


def test_a_task_submitted_again_in_one_process_is_one_task(client: Client) -> None:
    row = (NAMER.child(), FUNCTION, b"arguments", ())
    client.tasks.submit(row, 1)
    client.dropped.append(row[0] + FIRST_RETURN)
    sent_by(client)
    client.tasks.submit(row, 1)
    assert client.unfinished == 1
    receive(client, m.Results(((row[0], m.OK, (b"value",)),)))
    assert client.unfinished == 0
    assert client.objects.at_hand(row[0] + FIRST_RETURN)
    client.dropped.append(row[0] + FIRST_RETURN)
    assert sent_by(client)[-1] == m.Release((row[0] + FIRST_RETURN,))
    assert not client.entries


def test_inherited_rows_are_repeated_and_not_held(client: Client) -> None:
    row = (b"x" * 16, b"g" * 16, b"arguments", ())
    receive(client, m.InheritTasks((row,), ((b"g" * 16, "g", b"payload", ()),)))
    found = again(client)
    assert row in found[m.Submit]
    assert b"g" * 16 in {each[0] for each in found[m.Export]}
    assert row[0] + FIRST_RETURN not in found.get(m.Hold, ())
    receive(client, m.Results(((row[0], m.OK, ()),)))
    assert row not in again(client).get(m.Submit, ())
    assert client.unfinished == 0


def test_later_attempts_name_other_children_and_other_puts() -> None:
    parent = b"p" * 16
    numbers = (0, 0, 1, first_attempt(1), next_attempt(0, first_attempt(1)), first_attempt(2))
    names = [(namer.child(), namer.put()) for namer in (Namer(JOB, parent, attempt=number) for number in numbers)]
    assert names[0] == names[1]
    assert len({name for pair in names for name in pair}) == 2 * len(set(numbers))


class Finalized:
    """A cycle whose finalizer does ``act`` when the collector finds it."""

    def __init__(self, act: Any) -> None:
        self.me = self
        self.act = act

    def __del__(self) -> None:
        self.act()


@pytest.mark.parametrize("kind", [m.Submit, m.Release])
@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("step", range(4))
def test_a_finalizer_that_submits_within_a_step_of_the_outbox_loses_and_doubles_nothing(step: int, sends: bool, kind: Any) -> None:
    for allocations in range(8):
        outbox, taken = Outbox(), []

        def take(outbox: Outbox = outbox, taken: list[Any] = taken) -> None:
            taken += outbox.take(b"scheduler", b"store")

        def finalize(outbox: Outbox = outbox, take: Any = take) -> None:
            outbox.add(m.Submit, "finalizer")
            if sends:
                take()
            outbox.add(m.Submit, "finalizer, too")

        for before in range(step):
            outbox.add(kind, before)
        thresholds = gc.get_threshold()
        gc.collect()
        gc.set_threshold(100_000)
        Finalized(finalize)
        gc.set_threshold(gc.get_count()[0] + allocations)
        if step == 1:
            take()
        elif step == 2:
            outbox.add_message(m.Goodbye())
        outbox.add(m.Submit, "first")
        outbox.add(m.Submit, "second")
        gc.set_threshold(*thresholds)
        gc.collect()
        outbox.add(m.Submit, "last")
        take()
        rows = [row for effect in taken if effect.message != m.Goodbye() for row in effect.message[0]]
        expected = [*map(str, range(step)), "finalizer", "finalizer, too", "first", "second", "last"]
        assert sorted(map(str, rows)) == sorted(expected), allocations
        assert sum(effect.message == m.Goodbye() for effect in taken) == (step == 2)
