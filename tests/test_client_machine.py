"""The client machine, driven by hand: what it says, in which order, and what it says again to a new daemon."""

from __future__ import annotations

from typing import Any

import pytest

from zfabric.config import Config
from zfabric.machines.client import ABSENT, BATCH_ROWS_MAX, Client
from zfabric.protocol import codec
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import FIRST_PUT_INDEX, object_id
from zfabric.protocol.messages import ERROR, FAILED, OK, PROTOCOL_VERSION

DAEMON = b"daemon01"
SCHEDULER, STORE = b"L" + DAEMON, b"O" + DAEMON
FUNCTION = b"f" * 16
REGISTER = m.Register(PROTOCOL_VERSION, "driver", 1, 1, b"", b"", b"", "", "")


def task(number: int) -> bytes:
    return number.to_bytes(16, "big")


def value(number: int, index: int = 0) -> bytes:
    return object_id(task(number), index)


def put_id(number: int) -> bytes:
    return object_id(task(900), FIRST_PUT_INDEX + number)


def row(number: int, *dependencies: bytes, **options: Any) -> m.Row:
    return (task(number), FUNCTION, b"args", dependencies, *((tuple(options.items()),) if options else ()))


class Driven:
    """A client and the one who hears it."""

    def __init__(self, **config: Any) -> None:
        self.client = Client(b"Cdriver01", Config.of(config))
        self.client.connect(DAEMON)

    def said(self) -> list[m.Message]:
        """Everything to the scheduler since the last time, as it arrives there; what goes to the store is in ``to_store``."""
        self.to_store: list[m.Message] = []
        heard = []
        for effect in self.client.take_effects(0.0):
            assert type(effect) is Send
            message = codec.decode(codec.encode(0, 0, [(effect.to[:1], b"C", effect.message)]))[2][0][2]
            if effect.to == STORE:
                self.to_store.append(message)
            else:
                assert effect.to == SCHEDULER
                heard.append(message)
        self.client.check_invariants()
        return heard

    def hear(self, message: m.Message) -> None:
        decoded = codec.decode(codec.encode(0, 0, [(b"C", b"L", message)]))[2][0][2]
        self.client.step(0.0, SCHEDULER, decoded)
        self.client.check_invariants()

    def drop(self, *identifiers: bytes) -> None:
        self.client.dropped.extend(identifiers)

    def rejoined(self, daemon: bytes = b"daemon02") -> list[m.Message]:
        self.client.connect(daemon)
        self.client.rejoin(REGISTER)
        effects = [effect for effect in self.client.take_effects(0.0) if isinstance(effect, Send)]
        assert {effect.to[1:] for effect in effects} == {daemon}
        self.to_store = [effect.message for effect in effects if effect.to[:1] == b"O"]
        return [effect.message for effect in effects if effect.to[:1] == b"L"]


@pytest.fixture
def driven() -> Driven:
    return Driven()


def rows_of(messages: list[m.Message], kind: type[Any]) -> list[Any]:
    return [each for message in messages if type(message) is kind for each in message[0]]


# --- what is said, and in which order ---------------------------------------------------------------------------------------------


def test_rows_of_one_kind_are_one_message_and_kinds_keep_their_order(driven: Driven) -> None:
    client = driven.client
    client.export(FUNCTION, "f", b"code", ())
    client.export(FUNCTION, "f", b"code", ())
    client.submit(row(1), 1)
    client.submit(row(2), 1)
    client.put(put_id(0), b"v", (), False)
    client.submit(row(3, put_id(0)), 1)
    assert driven.said() == [
        m.Export(((FUNCTION, "f", b"code", ()),)),
        m.Submit((row(1), row(2))),
        m.Put(((put_id(0), b"v", (), False),)),
        m.Submit((row(3, put_id(0)),)),
    ]
    assert driven.said() == []
    assert not client.has_unsent


def test_a_batch_ends_where_a_receiver_would_choke(driven: Driven) -> None:
    for number in range(BATCH_ROWS_MAX + 1):
        driven.client.submit(row(number), 1)
    assert [len(message.rows) for message in driven.said()] == [BATCH_ROWS_MAX, 1]


def test_a_hold_comes_before_the_release_that_follows_it(driven: Driven) -> None:
    client = driven.client
    client.add_reference(value(1))
    driven.drop(value(1))
    client.add_reference(value(2))
    client.settle()
    client.add_reference(value(1))
    assert driven.said() == [m.Hold((value(1), value(2))), m.Release((value(1),)), m.Hold((value(1),))]


def test_refs_inside_a_value_are_held_before_the_value_is_let_go_of(driven: Driven) -> None:
    driven.client.add_reference(value(1))
    driven.client.want((value(1),))
    driven.said()
    driven.hear(m.Objects(((value(1), OK, b"box", (value(2),)),)))
    driven.drop(value(1))
    assert driven.said() == [m.Hold((value(2),)), m.Release((value(1), value(2)))]
    assert driven.client.entries == {}


def test_only_the_first_ref_holds_and_only_the_last_releases(driven: Driven) -> None:
    for _ in range(3):
        driven.client.add_reference(value(1))
    assert driven.said() == [m.Hold((value(1),))]
    driven.drop(value(1), value(1))
    assert driven.said() == []
    driven.drop(value(1))
    assert driven.said() == [m.Release((value(1),))]
    driven.drop(value(1))
    assert driven.said() == []


def test_what_a_task_said_goes_before_what_its_finalizers_asked_for(driven: Driven) -> None:
    driven.client.add_reference(value(1))
    driven.drop(value(1))
    first = driven.client.take_said()
    assert [effect.message for effect in first if isinstance(effect, Send)] == [m.Hold((value(1),))]
    assert driven.said() == [m.Release((value(1),))]


def test_a_dropped_pending_row_stays_until_its_outcome_and_goes_with_it(driven: Driven) -> None:
    driven.client.submit(row(1), 1)
    driven.drop(value(1))
    assert driven.said() == [m.Submit((row(1),)), m.Release((value(1),))]
    assert driven.client.unfinished == 1
    assert rows_of(driven.rejoined(), m.Submit) == [row(1)]
    driven.hear(m.Results(((task(1), OK, ()),)))
    assert driven.client.unfinished == 0
    assert driven.client.entries == {}


# --- outcomes -----------------------------------------------------------------------------------------------------------------------


def test_a_small_value_is_at_hand_as_soon_as_it_is_pushed(driven: Driven) -> None:
    client = driven.client
    client.submit(row(1), 1)
    assert not client.at_hand(value(1))
    driven.hear(m.Results(((task(1), OK, (b"v",)),)))
    assert client.at_hand(value(1))
    assert client.unfinished == 0
    entry = client.lookup(value(1))
    assert (entry.status, entry.data, entry.refs) == (OK, b"v", 1)
    driven.hear(m.Results(((task(1), OK, (b"other",)),)))
    assert client.lookup(value(1)).data == b"v"
    assert client.unfinished == 0


@pytest.mark.parametrize("status", [ERROR, FAILED])
def test_an_error_is_an_outcome(driven: Driven, status: int) -> None:
    driven.client.submit(row(1), 1)
    driven.hear(m.Results(((task(1), status, (b"why",)),)))
    entry = driven.client.lookup(value(1))
    assert (entry.status, entry.data) == (status, b"why")


def test_each_of_several_values_is_its_own(driven: Driven) -> None:
    client = driven.client
    client.submit(row(1), 3)
    assert client.unfinished == 1
    driven.hear(m.Results(((task(1), OK, (b"a", None, b"c")),)))
    assert client.unfinished == 0
    assert [client.lookup(value(1, index)).data for index in range(3)] == [b"a", None, b"c"]
    assert [client.at_hand(value(1, index)) for index in range(3)] == [True, False, True]
    assert all(client.known(value(1, index)) for index in range(3))
    driven.said()
    client.want(value(1, index) for index in range(3))
    assert driven.said() == [m.Fetch((value(1, 1),))]
    driven.hear(m.Objects(((value(1, 1), OK, b"b", ()),)))
    assert client.lookup(value(1, 1)).data == b"b"


def test_all_of_several_values_have_the_error_of_their_task(driven: Driven) -> None:
    driven.client.submit(row(1), 2)
    driven.hear(m.Results(((task(1), ERROR, (b"boom",)),)))
    assert [driven.client.lookup(value(1, index)).data for index in range(2)] == [b"boom", b"boom"]
    assert [driven.client.lookup(value(1, index)).status for index in range(2)] == [ERROR, ERROR]


def test_a_task_without_values_is_unfinished_until_its_outcome(driven: Driven) -> None:
    driven.client.submit(row(1), 0)
    assert driven.client.unfinished == 1
    assert driven.client.entries == {}
    assert rows_of(driven.rejoined(), m.Submit) == [row(1)]
    driven.hear(m.Results(((task(1), OK, ()),)))
    assert driven.client.unfinished == 0
    assert rows_of(driven.rejoined(), m.Submit) == []


def test_a_value_that_is_pushed_is_not_asked_for_and_one_from_elsewhere_is_asked_for_once(driven: Driven) -> None:
    client = driven.client
    client.submit(row(1), 1)
    client.add_reference(value(2))
    driven.said()
    client.want((value(1), value(2)))
    client.want((value(1), value(2)))
    assert driven.said() == [m.Fetch((value(2),))]


def test_watchers_hear_of_an_outcome_once_it_is_here(driven: Driven) -> None:
    heard: list[bytes] = []
    driven.client.submit(row(1), 1)
    driven.client.submit(row(2), 1)
    for number in (1, 2):
        driven.client.watch(value(number), heard.append)
    driven.hear(m.Results(((task(1), OK, (b"v",)), (task(2), OK, (None,)))))
    assert heard == [value(1)]
    assert m.Fetch((value(2),)) in driven.said()
    driven.hear(m.Objects(((value(2), OK, b"w", ()),)))
    assert heard == [value(1), value(2)]


def test_what_a_parent_that_runs_again_submits_again_counts_once(driven: Driven) -> None:
    driven.client.submit(row(1), 1)
    driven.client.submit(row(1), 1)
    assert driven.client.unfinished == 1
    driven.hear(m.Results(((task(1), OK, (b"v",)),)))
    assert driven.client.unfinished == 0
    driven.drop(value(1))
    driven.said()
    assert driven.client.at_hand(value(1))
    driven.drop(value(1))
    assert driven.said() == [m.Release((value(1),))]
    assert driven.client.entries == {}


# --- places in the arena ------------------------------------------------------------------------------------------------------------


def told(driven: Driven, number: int, times: int = 1) -> bytes:
    identifier = value(number)
    driven.client.add_reference(identifier)
    for _ in range(times):
        driven.hear(m.Objects(((identifier, OK, (4096, 100), ()),)))
    driven.said()
    return identifier


def test_a_telling_is_a_pin_and_each_is_unpinned_once(driven: Driven) -> None:
    identifier = told(driven, 1, times=2)
    driven.drop(identifier)
    assert driven.said() == [m.Release((identifier,))]
    assert driven.to_store == [m.Unpin((identifier, identifier))]
    driven.client.settle()
    assert driven.said() == []


def test_a_place_stays_pinned_while_something_looks_at_it_though_the_ref_is_gone(driven: Driven) -> None:
    identifier = told(driven, 1)
    driven.client.view(identifier)
    driven.client.view(identifier)
    driven.drop(identifier)
    driven.client.unviewed.append(identifier)
    driven.said()
    assert driven.to_store == []
    driven.client.unviewed.append(identifier)
    driven.said()
    assert driven.to_store == [m.Unpin((identifier,))]


def test_a_recall_is_declined_while_something_looks_and_obeyed_otherwise(driven: Driven) -> None:
    seen, unseen = told(driven, 1), told(driven, 2)
    driven.client.view(seen)
    driven.hear(m.Recall((seen, unseen)))
    driven.said()
    assert driven.to_store == [m.Unpin((unseen,))]
    assert driven.client.at_hand(seen)
    assert not driven.client.at_hand(unseen)
    driven.client.want((seen, unseen))
    assert driven.said() == [m.Fetch((unseen,))]


def test_a_place_told_for_a_ref_that_is_gone_is_unpinned_at_once(driven: Driven) -> None:
    driven.hear(m.Objects(((value(1), OK, (4096, 100), ()),)))
    driven.said()
    assert driven.to_store == [m.Unpin((value(1),))]
    assert driven.client.tellings == {}


def test_room_that_nobody_waits_for_any_more_goes_back(driven: Driven) -> None:
    kept, forsaken = driven.client.reserve(100, True, 1.0), driven.client.reserve(200, True, 1.0)
    driven.said()
    assert driven.to_store == [m.Reserve(kept, 100, True, 1.0), m.Reserve(forsaken, 200, True, 1.0)]
    driven.client.forsake(forsaken)
    driven.hear(m.Granted(kept, 0, 128))
    driven.hear(m.Granted(forsaken, 4096, 256))
    driven.said()
    assert driven.to_store == [m.ReturnGrant(4096, 0)]
    driven.client.forsake(kept)
    driven.said()
    assert driven.to_store == [m.ReturnGrant(0, 0)]
    assert driven.client.reserving == {}
    assert driven.client.reservations == {}


# --- a new daemon -------------------------------------------------------------------------------------------------------------------


def test_rejoin_says_everything_again_in_the_order_that_registration_asks_for(driven: Driven) -> None:
    client = driven.client
    client.export(FUNCTION, "f", b"code", ())
    client.put(put_id(0), b"small", (value(50),), False)
    client.put(put_id(1), (8192, 10), (), False)
    for number in range(1, 5):
        client.submit(row(number), 1)
    client.submit(row(5, value(1)), 2)
    driven.hear(m.Results(((task(1), OK, (b"v",)), (task(2), ERROR, (b"boom",)), (task(3), OK, (None,)))))
    client.add_reference(value(60))
    client.want((value(60), value(3)))
    client.cancel((value(4),), True, False)
    client.query(77, "tasks", ())
    token = client.reserve(10, False, 5.0)
    client.told(value(70), (4096, 5))
    driven.said()

    said = driven.rejoined()
    kinds = [type(message) for message in said]
    assert kinds[0] is m.Register
    assert kinds.index(m.Ready) > max(kinds.index(kind) for kind in (m.Export, m.Put, m.Offer, m.Submit, m.Hold, m.Fetch))
    assert kinds.index(m.Cancel) > kinds.index(m.Ready)
    assert rows_of(said, m.Export) == [(FUNCTION, "f", b"code", ())]
    assert rows_of(said, m.Put) == [(put_id(1), (8192, 10), (), False)]
    assert set(rows_of(said, m.Offer)) == {
        (put_id(0), OK, b"small", (value(50),)),
        (value(1), OK, b"v", ()),
        (value(2), ERROR, b"boom", ()),
    }
    assert set(rows_of(said, m.Submit)) == {row(3), row(4), row(5, value(1))}
    held = {put_id(0), put_id(1), value(50), *(value(number) for number in (1, 2, 3, 4, 5, 60)), value(5, 1)}
    assert set(rows_of(said, m.Hold)) == held
    assert set(rows_of(said, m.Fetch)) == {value(60), value(3)}
    assert m.Cancel((value(4),), True, False) in said
    assert m.Query(77, "tasks", ()) in said
    assert driven.to_store == [m.Pinned(((value(70), 4096, 5),)), m.Reserve(token, 10, False, 5.0)]
    assert not client.welcomed
    assert driven.rejoined(b"daemon03") == said


def test_rejoin_takes_the_place_of_what_was_waiting_to_be_sent(driven: Driven) -> None:
    driven.client.submit(row(1), 1)
    driven.client.submit(row(2), 1)
    driven.drop(value(1))
    said = driven.rejoined()
    assert [type(message) for message in said] == [m.Register, m.Submit, m.Hold, m.Ready]
    assert set(rows_of(said, m.Submit)) == {row(1), row(2)}
    assert rows_of(said, m.Hold) == [value(2)]


def test_a_value_that_an_unfinished_row_needs_is_offered_though_its_refs_are_gone(driven: Driven) -> None:
    client = driven.client
    client.submit(row(1), 1)
    driven.hear(m.Results(((task(1), OK, (b"v",)),)))
    client.submit(row(2, value(1)), 1)
    driven.drop(value(1))
    driven.said()
    said = driven.rejoined()
    assert rows_of(said, m.Offer) == [(value(1), OK, b"v", ())]
    assert value(1) not in rows_of(said, m.Hold)
    driven.hear(m.Results(((task(2), OK, (b"w",)),)))
    assert [each[0] for each in rows_of(driven.rejoined(), m.Offer)] == [value(2)]


def test_the_row_of_a_value_in_the_arena_is_kept_until_its_last_ref_is_gone(driven: Driven) -> None:
    driven.client.submit(row(1), 1)
    driven.hear(m.Results(((task(1), OK, (None,)),)))
    assert rows_of(driven.rejoined(), m.Submit) == [row(1)]
    driven.drop(value(1))
    assert rows_of(driven.rejoined(), m.Submit) == []
    assert driven.client.lineage == {}


def test_an_inherited_row_is_said_again_with_its_function_until_its_outcome_and_nothing_of_it_is_held(driven: Driven) -> None:
    function = (b"g" * 16, "g", b"code", ())
    driven.hear(m.Inherit((row(1),), (function,)))
    driven.hear(m.Inherit((row(1),), (function,)))
    assert driven.client.unfinished == 1
    said = driven.rejoined()
    assert (rows_of(said, m.Export), rows_of(said, m.Submit), rows_of(said, m.Hold)) == ([function], [row(1)], [])
    driven.hear(m.Results(((task(1), OK, ()),)))
    assert driven.client.unfinished == 0
    assert rows_of(driven.rejoined(), m.Submit) == []


def test_an_answered_cancel_and_an_answered_question_are_not_said_again(driven: Driven) -> None:
    driven.client.submit(row(1), 1)
    driven.client.cancel((value(1),), False, False)
    driven.client.query(7, "tasks", ())
    driven.hear(m.Results(((task(1), FAILED, (b"stopped",)),)))
    driven.hear(m.Answer(7, "all is well", ""))
    kinds = {type(message) for message in driven.rejoined()}
    assert m.Cancel not in kinds
    assert m.Query not in kinds


def test_a_goodbye_is_said_again_and_the_end_of_its_job_is_its_farewell(driven: Driven) -> None:
    driven.client.say(m.Goodbye())
    assert driven.said() == [m.Goodbye()]
    assert driven.rejoined()[-1] == m.Goodbye()
    driven.hear(m.Refused("JobEndedError", "it has ended"))
    assert driven.client.farewell == ""
    assert driven.client.refused is None


def test_what_a_client_does_not_accept_is_counted_and_changes_nothing(driven: Driven) -> None:
    driven.hear(m.Submit((row(1),)))
    assert driven.client.counts["refused"] == 1
    assert driven.client.entries == {}


def test_a_ref_that_was_kept_by_other_means_is_held_when_it_is_wanted(driven: Driven) -> None:
    assert driven.client.lookup(value(1)).status == ABSENT
    driven.client.want((value(1),))
    assert driven.said() == [m.Hold((value(1),)), m.Fetch((value(1),))]
