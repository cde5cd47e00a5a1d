"""The part of a client that has large arguments of calls, until it reports them or uses their room again."""

from __future__ import annotations

from typing import Any

import pytest
from client_alone import DAEMON, NAMER, client, receive, sent_by

from zfabric.machines.client.machine import Client
from zfabric.machines.common.extents import footprint
from zfabric.protocol import messages as m
from zfabric.protocol.ids import ACTOR, CALL_RETURN, FIRST_RETURN
from zfabric.protocol.messages import ALIVE, OK

__all__ = ["client"]
SIZE = 100_000
ACTOR_ID, ELSEWHERE = NAMER.child(), b"\x03elsewher"
PLACE = b"\x04process"


@pytest.fixture
def voided(client: Client) -> list[int]:
    """The offsets of voided headers. The client has room of 8 MiB."""
    receive(client, m.Granted(client.reservations.reserve(SIZE, False, 1.0), 0, 8 * 2**20))
    answer = next(iter(client.reservations.answers.values()))
    assert isinstance(answer, m.Granted)
    client.reservations.take(answer.token)
    client.reservations.grants.add(answer.offset, answer.size)
    offsets: list[int] = []
    client.arguments.void = offsets.append
    client.references.add(ACTOR_ID + FIRST_RETURN)
    sent_by(client)
    return offsets


def written(client: Client, size: int = SIZE) -> bytes:
    """An argument that the client has written; the program drops its ref after the call."""
    offset = client.reservations.allocate(size)
    assert offset is not None
    identifier: bytes = NAMER.put()
    client.add_argument(identifier, (offset, size))
    return identifier


def call(client: Client, argument: bytes, **terms: Any) -> bytes:
    call_id: bytes = NAMER.child()
    client.calls.call(ACTOR_ID, (call_id, "method", b"arguments", (argument,), (), None), 1, terms.pop("retries", 0), **terms)
    client.dropped.append(argument)
    return call_id


def found(client: Client, process: bytes, attempt: int = 1) -> None:
    client.calls.meet(ACTOR_ID)
    receive(client, m.ActorLocations(((ACTOR_ID, ALIVE, process, attempt, True, b"", b""),)))


def calls_in(messages: list[Any]) -> list[Any]:
    return [row for message in messages if isinstance(message, m.Call) for row in message.rows]


def reported(messages: list[Any]) -> list[bytes]:
    return [row[0] for message in messages if isinstance(message, m.Put) for row in message.rows]


def test_an_argument_goes_to_an_actor_of_this_node_unreported_and_its_room_is_used_again(client: Client, voided: list[int]) -> None:
    found(client, PLACE)
    argument = written(client)
    place = client.arguments.places[argument]
    call_id = call(client, argument)
    messages = sent_by(client)
    assert [row[4] for row in calls_in(messages)] == [(place,)]
    assert not reported(messages)
    client.step(0.0, ACTOR + PLACE, m.Returned(((call_id, OK, (b"value",)),)))
    assert not reported(messages := sent_by(client))
    assert not [each for each in messages if isinstance(each, m.Release) and argument in each.object_ids]
    assert voided == [place[0]]
    assert client.arguments.places == {}
    assert client.reservations.allocate(SIZE) == place[0]
    assert set(client.entries) == {ACTOR_ID + FIRST_RETURN, call_id + CALL_RETURN}


@pytest.mark.parametrize("why", ["on another node", "keeps outcomes"])
def test_an_argument_is_reported_before_a_call_that_is_to_fetch_it(client: Client, voided: list[int], why: str) -> None:
    found(client, DAEMON if why == "on another node" else PLACE)
    argument = written(client)
    call(client, argument, keeps=why == "keeps outcomes")
    messages = sent_by(client)
    assert reported(messages) == [argument]
    assert not calls_in(messages)
    (query,) = (each for each in messages if isinstance(each, m.Query))
    assert messages.index(query) > messages.index(next(each for each in messages if isinstance(each, m.Put)))
    receive(client, m.Answer(query.token, None, ""))
    assert [row[4] for row in calls_in(sent_by(client))] == [(None,)]
    assert voided == []


def test_arguments_are_reported_when_they_are_many_or_old_or_the_store_wants_room(client: Client, voided: list[int]) -> None:
    """They cannot be spilled before that."""
    most = client.arguments._most
    first = written(client, most // 5)
    receive(client, m.Granted(client.reservations.reserve(SIZE, False, 1.0), 2**26, 2**26))
    client.reservations.grants.add(2**26, 2**26)
    others = [written(client, most // 5) for _ in range(5)]
    assert reported(sent_by(client)) == [first]
    client.rest()
    assert reported(sent_by(client)) == others
    last = written(client)
    receive(client, m.RecallGrant(0))
    assert reported(sent_by(client)) == [last]
    assert voided == []
    assert client.arguments.places == {}
    assert client.arguments._bytes == 0


def test_a_restarted_daemon_is_told_of_them(client: Client, voided: list[int]) -> None:
    argument = written(client)
    place = client.arguments.places[argument]
    client.rejoin(m.Register(m.PROTOCOL_VERSION, "driver", 1, 1, b"job1", b"\x01client0", b"", "", ""))
    messages = sent_by(client)
    assert reported(messages) == [argument]
    (held,) = (each for each in messages if isinstance(each, m.GrantsHeld))
    assert all(offset >= place[0] - 64 + footprint(SIZE) for offset, _, _ in held.rows)
    assert voided == []


def test_an_argument_with_refs_inside_has_no_place_without_a_pin(client: Client, voided: list[int]) -> None:
    """Whoever receives it must be told of the refs."""
    inner: bytes = NAMER.put()
    client.put(inner, b"value", (), False)
    outer: bytes = NAMER.put()
    client.put(outer, (1024, SIZE), (inner,), False)
    assert client.place_without_pin(outer) is None
    other: bytes = NAMER.put()
    client.put(other, (1024, SIZE), (), False)
    assert client.place_without_pin(other) == (1024, SIZE)
    large: bytes = NAMER.put()
    client.put(large, (1024, client.config.copied_bytes + 1), (), False)
    on_disk: bytes = NAMER.put()
    client.put(on_disk, (-64, SIZE), (), False)
    assert (client.place_without_pin(large), client.place_without_pin(on_disk)) == (None, None)
