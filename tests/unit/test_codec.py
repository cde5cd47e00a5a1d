"""Frames: messages arrive as they were sent; bytes that are no frame of this protocol raise MalformedFrame, and nothing else."""

from __future__ import annotations

import importlib
import pkgutil
import typing
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_messages import node_messages

from zfabric.api.remote_function import CALL_BYTES_MAX
from zfabric.config import MESSAGE_BYTES_MAX, ROW_BYTES
from zfabric.machines.common.link import REPEATED_FRAMES, Link
from zfabric.protocol import codec
from zfabric.protocol import messages as m
from zfabric.protocol.checks import UNCHECKED, field_checks
from zfabric.protocol.codec import MESSAGES_MAX, MalformedFrame, MessageTooLarge, decode, encode, encode_body, encode_messages, salvage
from zfabric.protocol.ids import ATTEMPT_MAX, FUNCTION_BYTES, INCARNATION_BYTES, NODE_BYTES, OBJECT_BYTES, TASK_BYTES
from zfabric.protocol.options import CHECKPOINT_PARTS_MAX, LOG_NUMBERS_MAX, OPTION_TYPES, STREAM_VALUES_MAX
from zfabric.protocol.pieces import DIVISIBLE, divided
from zfabric.protocol.refusals import Unread
from zfabric.protocol.trace import EACH_BYTES, TIME_BYTES, WAITED_BYTES, read_trace

TASK, FUNCTION, OBJECT = b"t" * TASK_BYTES, b"f" * FUNCTION_BYTES, b"o" * OBJECT_BYTES

# --- which messages there are -----------------------------------------------------------------------------------------------------


def test_every_message_is_known_to_the_codec_and_has_its_name_in_the_package() -> None:
    """A message is written into one module and named in the package: neither the module nor the name can be forgotten."""
    found = {each.name: importlib.import_module(f"{m.__name__}.{each.name}") for each in pkgutil.iter_modules(m.__path__)}
    assert {*found.values()} - {*m.SECTIONS} == {found["rows"]}
    for name, kind in m.MESSAGES.items():
        assert getattr(m, name, None) is kind, f"zfabric/protocol/messages/__init__.py does not name {name}"


# --- any message, well typed ------------------------------------------------------------------------------------------------------

small_bytes = st.binary(max_size=12)
numbers = st.integers(-(2**63), 2**64 - 1)
indexes = st.integers(0, STREAM_VALUES_MAX)
log_numbers = st.integers(0, LOG_NUMBERS_MAX - 1)
floats = st.floats(allow_nan=False) | numbers
task_ids = st.binary(min_size=TASK_BYTES, max_size=TASK_BYTES)
function_ids = st.binary(min_size=FUNCTION_BYTES, max_size=FUNCTION_BYTES)
object_ids = st.binary(min_size=OBJECT_BYTES, max_size=OBJECT_BYTES)
texts = st.text(max_size=6)
places = st.tuples(numbers, numbers)
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | texts | small_bytes,
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)


def many(each: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(each, max_size=4).map(tuple)


options = many(st.tuples(texts.filter(lambda name: name not in OPTION_TYPES), plain))  # those that are known have types of their own
values = small_bytes | places | st.none()
outputs = many(values)
short_rows = st.tuples(task_ids, function_ids, small_bytes, many(object_ids))
long_rows = st.tuples(task_ids, function_ids, small_bytes, many(object_ids), st.none() | options)
task_rows = short_rows | long_rows
function_rows = st.tuples(function_ids, texts, small_bytes, options)
object_rows = st.tuples(object_ids, numbers, values, many(object_ids))

incarnations = st.binary(min_size=INCARNATION_BYTES, max_size=INCARNATION_BYTES)
callers = st.binary(min_size=2 * INCARNATION_BYTES, max_size=2 * INCARNATION_BYTES)
"""Callers of other nodes."""
places = st.tuples(st.integers(0, 2**62), st.integers(0, 2**62))
dependencies = st.lists(st.tuples(object_ids, small_bytes | st.none() | places), max_size=3)
call_rows = st.tuples(task_ids, texts, small_bytes) | st.builds(
    lambda head, pairs, settings: (*head, tuple(name for name, _ in pairs), tuple(value for _, value in pairs), settings),
    st.tuples(task_ids, texts, small_bytes),
    dependencies,
    st.none() | options,
)

OBJECT_LISTS = ("Hold", "Release", "Fetch", "Unpin", "RecallPins", "Free", "Protect", "RetainOnly", "Unreferenced")

ROWS: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("Submit", "rows"): many(task_rows),
    ("InheritTasks", "rows"): many(task_rows),
    ("InheritTasks", "functions"): many(function_rows),
    ("Dispatch", "rows"): many(task_rows),
    ("Dispatch", "details"): many(st.tuples(numbers, numbers, outputs, many(numbers))),
    ("SubmitDirect", "daemon"): incarnations,
    ("SubmitDirect", "rows"): many(task_rows),
    ("SubmittedDirect", "worker"): incarnations,
    ("SubmittedDirect", "rows"): many(task_rows),
    ("DirectAllowed", "worker"): incarnations,
    ("DirectCounts", "peer"): incarnations,
    ("DirectAllowed", "functions"): many(function_ids),
    ("Completed", "extras"): many(st.tuples(numbers, many(many(object_ids)), many(object_ids))),
    ("Completed", "durations"): many(st.tuples(function_ids, numbers, floats)),
    ("Yielded", "rows"): many(st.tuples(task_ids, numbers, indexes, st.one_of(st.binary(), st.booleans(), st.none()), many(object_ids))),
    ("Results", "rows"): many(st.tuples(task_ids, numbers, outputs)),
    ("Objects", "rows"): many(object_rows),
    ("OfferResults", "rows"): many(object_rows),
    ("Put", "rows"): many(st.tuples(object_ids, values, many(object_ids), st.booleans())),
    ("RunningTasks", "rows"): many(st.tuples(task_rows, numbers, st.booleans(), texts)),
    ("RunningTasks", "gpus"): many(numbers),
    ("Export", "functions"): many(function_rows),
    ("Functions", "functions"): many(function_rows),
    ("Pinned", "rows"): many(st.tuples(object_ids, numbers, numbers)),
    ("GrantsHeld", "rows"): many(st.tuples(numbers, numbers, numbers)),
    ("ReturnGrant", "gaps"): many(st.tuples(numbers, numbers)),
    ("Write", "puts"): many(st.tuples(texts, small_bytes, small_bytes)),
    ("Write", "deletes"): many(st.tuples(texts, small_bytes)),
    ("Blocked", "wanted"): many(object_ids),
    ("Blocked", "returned"): many(task_ids),
    ("WaitDetails", "task_id"): task_ids,
    ("WaitDetails", "callees"): many(st.tuples(object_ids, task_ids)),
    ("Cancel", "object_ids"): many(object_ids),
    ("PutCommitted", "object_ids"): many(object_ids),
    ("WatchReferences", "object_ids"): many(object_ids),
    ("WatchReferences", "former"): st.just(b"") | st.binary(min_size=NODE_BYTES, max_size=NODE_BYTES),
    ("TakeBack", "task_ids"): many(task_ids),
    ("TakenBack", "task_ids"): many(task_ids),
    **{(name, "object_ids"): many(object_ids) for name in OBJECT_LISTS},
    ("FindActors", "actor_ids"): many(task_ids),
    ("OutcomesRecorded", "call_ids"): many(task_ids),
    ("ActorLocations", "rows"): many(st.tuples(task_ids, numbers, small_bytes, numbers, st.booleans(), small_bytes, small_bytes)),
    ("Call", "actor_id"): task_ids,
    ("Call", "rows"): many(call_rows),
    ("Returned", "rows"): many(st.tuples(task_ids, numbers, outputs)),
    ("CallOutcomes", "rows"): many(st.tuples(task_ids, incarnations | callers, numbers, outputs, many(many(object_ids)))),
    ("ExpectResults", "rows"): many(st.one_of(st.tuples(object_ids, task_ids), st.tuples(object_ids, task_ids, numbers))),
    ("HostedActors", "rows"): many(st.tuples(task_rows, numbers)),
    ("CallTimes", "names"): many(st.tuples(function_ids, texts)),
    ("CallTimes", "trace"): st.lists(st.binary(min_size=EACH_BYTES, max_size=EACH_BYTES), max_size=3).map(b"".join),
    ("CallTimes", "waited"): st.just(b""),
    ("HostDelays", "running"): st.one_of(task_ids, st.just(b"")),
    ("HostDelays", "rows"): many(st.tuples(task_ids, task_ids, many(object_ids), many(task_ids), st.booleans())),
    ("CallTimes", "arguments"): many(st.tuples(task_ids, many(object_ids))),
    **{
        (name, "actor_id"): task_ids
        for name in (
            "KillActor",
            "ActorExiting",
            "LogAppended",
            "Checkpoint",
            "LogCommitted",
            "ReplayProgress",
            "CallCounts",
            "OutcomesReceived",
            "RetireActor",
            "ActorEnded",
            "DrainActor",
            "ActorDrained",
        )
    },
    **{(name, field): log_numbers for name in ("LogAppended", "Checkpoint") for field in ("attempt", "number", "last")},
    **{(name, "refs"): many(object_ids) for name in ("LogAppended", "Checkpoint")},
    ("LogAppended", "made"): many(object_ids),
    ("Checkpoint", "part"): st.integers(0, 3),
    ("Checkpoint", "parts"): st.integers(4, CHECKPOINT_PARTS_MAX),
    ("ReplayProgress", "callers"): many(incarnations | callers),
    **{("CallCounts", field): log_numbers for field in ("ended", "waits_for")},
    ("OutcomesReceived", "call_ids"): many(task_ids),
    ("RetireActor", "attempt"): st.integers(0, ATTEMPT_MAX),
    ("StopCall", "call_id"): task_ids,
}
"""Fields whose rows have a layout; every check of the codec has its row here (see the test below)."""
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    int: numbers,
    float: floats,
    str: texts,
    bytes: small_bytes,
    bool: st.booleans(),
    bytes | None: small_bytes | st.none(),
    Any: plain,
}


ends = st.tuples(task_ids, numbers, numbers, outputs)
times = st.binary(min_size=TIME_BYTES, max_size=TIME_BYTES)
completed = st.tuples(
    st.lists(st.tuples(ends, times), max_size=4), ROWS["Completed", "extras"], ROWS["Completed", "durations"], st.booleans()
).map(
    lambda drawn: m.Completed.of(
        tuple(end for end, _ in drawn[0]), drawn[1], drawn[2], b"".join(each for _, each in drawn[0]) if drawn[3] else b""
    )
)
"""Its columns have one length."""


BETWEEN_NODES = node_messages()
OF_ROWS = {name for name, _ in ROWS}


def message(kind: type[Any]) -> st.SearchStrategy[Any]:
    if kind is m.Completed:
        return completed
    if kind.__name__ in BETWEEN_NODES and kind.__name__ not in OF_ROWS:
        return BETWEEN_NODES[kind.__name__]
    hints = typing.get_type_hints(kind)
    fields = []
    for field in kind._fields:
        known = ROWS.get((kind.__name__, field))
        fields.append(known if known is not None else KINDS.get(hints[field], many(plain)))
    return st.tuples(*fields).map(lambda values: kind(*values))


any_message = st.sampled_from(sorted(m.MESSAGES)).flatmap(lambda name: message(m.MESSAGES[name]))
roles = st.binary(min_size=1, max_size=1)
envelopes = st.lists(st.tuples(roles, roles, any_message), max_size=3)


@pytest.mark.parametrize("name", sorted(m.MESSAGES))
def test_every_message_arrives_as_it_was_sent(name: str) -> None:
    @settings(max_examples=12, derandomize=True)
    @given(message(m.MESSAGES[name]), numbers, numbers, roles, roles)
    def round_trip(message: Any, sequence: int, acknowledged: int, to: bytes, source: bytes) -> None:
        frame = encode(sequence, acknowledged, [(to, source, message)])
        for form in (frame, memoryview(frame)):
            accepted = decode(form)
            assert accepted == (sequence, acknowledged, [(to, source, message)])
            assert type(accepted[2][0][2]) is m.MESSAGES[name]
        assert encode(*decode(frame)) == frame

    round_trip()


CHECKED = {name for name, kind in m.MESSAGES.items() if field_checks(kind) != UNCHECKED}
"""Messages of which more is checked than the types of their fields."""


def test_every_check_is_tried_here() -> None:
    assert {*BETWEEN_NODES, *OF_ROWS} >= CHECKED


@settings(max_examples=60)
@given(envelopes)
def test_messages_of_one_frame_keep_their_order(messages: list[Any]) -> None:
    assert decode(encode(1, 2, messages)) == (1, 2, messages)


# --- what no frame carries whole ----------------------------------------------------------------------------------------------------


def atoms(messages: list[Any]) -> list[Any]:
    """The same, each message with as few rows as it can have."""
    found = []
    for to, source, each in messages:
        halves = divided(each)
        found += [(to, source, each)] if halves is None else atoms([(to, source, half) for half in halves])
    return found


def longer(message: Any) -> Any:
    """The same with longer texts and lists."""
    if isinstance(message, m.Completed | m.Delegate | m.Ended | m.StopDelegated | m.StopRelayed | m.Join):
        return message
    if isinstance(message, m.PutKey | m.DeleteKeys | m.PutPart | m.DropUpload):  # The only list is who asks.
        return message._replace(key=b"k" * 300) if hasattr(message, "key") else message
    if isinstance(message, m.PrepareBundles | m.GroupState):
        last = message.rows[-1:]
        more = tuple((row[0] + index if type(row[0]) is int else row[0], row[1]) for row in last for index in range(4, 20))
        return message._replace(rows=message.rows + more)
    if isinstance(message, m.ReadLog | m.LogPage):  # Their text is one of two.
        larger = message._replace(after=b"k" * 300)
        return larger._replace(rows=((b"k", b"v" * 300),) * 20) if type(larger) is m.LogPage else larger
    if type(message) is m.LifeEnded:
        return message._replace(cause="x" * 200, stderr="x" * 200)
    if type(message) is m.StopChildren:
        return message._replace(prefixes=(b"p" * 12,) * 20, parents=(b"t" * 16,) * 20)
    if type(message) is m.Reclaimed:
        return message._replace(task_ids=(b"t" * 16,) * 20)
    if type(message) is m.Read:
        return message._replace(keys=(*message.keys, b"k" * 300))
    return type(message)(*("x" * 200 if type(each) is str else each * 20 if type(each) is tuple else each for each in message))


LONG_KINDS = [
    name
    for name, kind in sorted(m.MESSAGES.items())
    if any(hint is str or hint is Any or typing.get_origin(hint) is tuple for hint in typing.get_type_hints(kind).values())
]
"""Messages with a text or a list."""


@pytest.mark.parametrize("name", LONG_KINDS)
def test_no_frame_is_larger_than_its_receiver_accepts_and_all_arrives_in_order(name: str) -> None:
    cut = 0

    @settings(max_examples=8, derandomize=True, database=None)
    @given(message(m.MESSAGES[name]), st.integers(40, 250))
    def travel(drawn: Any, limit: int) -> None:
        nonlocal cut
        messages = [(b"C", b"L", each) for each in (m.Ready(), longer(drawn), m.Hold((OBJECT,) * 3))]
        sender, receiver = Link(4096, 5.0), Link(4096, 5.0)
        frames = sender.pack(messages, 0.0, limit)
        assert max(map(len, frames)) <= limit
        assert atoms(sender.unacknowledged()) == atoms(messages)
        accepted = [each for frame in frames for batch in receiver.receive(*decode(frame), 0.0) for each in batch]
        assert atoms(accepted) == atoms(messages)
        assert receiver.received == len(frames)
        again = [encode_body(sequence, 0, body) for sequence, body in sender.due(5.0)]
        assert [decode(each)[0] for each in again] == list(range(1, min(len(frames), REPEATED_FRAMES) + 1))
        assert max(map(len, again)) <= limit
        cut += len(encode(0, 0, messages[1:2])) > limit

    travel()
    assert cut


def rows_of(message: Any) -> list[Any]:
    """The content of a message row by row, then its other fields."""
    if type(message) is m.Completed:
        times = read_trace(message.task_ids + message.times) if message.times else ()
        extras = [(message.rows[row[0]], *row[1:]) for row in message.extras if 0 <= row[0] < len(message.attempts)]
        # No run: only that the function is named.
        return [*message.rows, *extras, *(each for each in message.durations if each[1]), *times]
    if type(message) is m.Dispatch:
        details = {row[0]: row[1:] for row in message.details}
        return [(row, details.get(index), message[2:]) for index, row in enumerate(message.rows)]
    field = DIVISIBLE[type(message)]
    return [(row, message._replace(**{field: ()})) for row in getattr(message, field)]


@pytest.mark.parametrize("kind", [*DIVISIBLE, m.Dispatch, m.Completed])
def test_a_divided_message_has_the_same_content(kind: type[Any]) -> None:
    @settings(max_examples=40, derandomize=True)
    @given(message(kind))
    def halves(message: Any) -> None:
        found = divided(message)
        if found is None:
            assert len(message[0]) < 2 or kind in (m.Call, m.SubmittedDirect)
            return
        first, second = found
        assert rows_of(first)
        assert rows_of(second)
        assert sorted(map(repr, rows_of(message))) == sorted(map(repr, rows_of(first) + rows_of(second)))
        if kind is m.Completed:
            names = [[row[0] for row in each.durations] for each in (message, first, second)]
            assert names[0] == names[1] == names[2], "the timeline names them by it"
        order = [row for row in rows_of(message) if row in rows_of(first)]
        assert order[: len(rows_of(first))] == rows_of(first) or kind is m.Completed

    halves()


def test_a_message_that_no_receiver_would_read_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MESSAGE_BYTES_MAX", 1000)
    link = Link(16, 5.0)
    large = (b"C", b"L", m.Answer(1, "x" * 1000, ""))
    with pytest.raises(MessageTooLarge, match="a message has at most 1000"):
        link.pack([(b"C", b"L", m.Ready()), large], 0.0, 200)
    assert link.next_out == 1
    assert not link.unacknowledged()


@pytest.mark.parametrize(
    ("sizes", "most"), [([1000] * 512, 1.1), ([1, 3000] * 256, 1.1), ([100_000, *[1] * 511], 3.0), ([*[1] * 511, 100_000], 3.0)]
)
def test_what_is_cut_is_not_encoded_for_each_halving(monkeypatch: pytest.MonkeyPatch, sizes: list[int], most: float) -> None:
    encoded: list[int] = []

    def counted(envelopes: list[Any]) -> bytes:
        data = encode_messages(envelopes)
        encoded.append(len(data))
        return data

    monkeypatch.setattr(codec, "encode_messages", counted)
    messages = (b"C", b"L", m.Results(tuple((TASK, 0, (bytes(size),)) for size in sizes)))
    size = len(encode(0, 0, [messages]))
    frames = Link(4096, 5.0).pack([messages], 0.0, 10_000)
    assert len(frames) <= 4 * size / 10_000
    assert sum(encoded) < most * size


def test_messages_that_are_too_many_for_a_frame_travel_in_several() -> None:
    sender, receiver = Link(16, 5.0), Link(16, 5.0)
    messages = [(b"C", b"L", m.Ready())] * (MESSAGES_MAX + 1)
    frames = sender.pack(messages, 0.0, 2**30)
    assert len(frames) == 2
    assert [each for frame in frames for batch in receiver.receive(*decode(frame), 0.0) for each in batch] == messages


# --- anything else ------------------------------------------------------------------------------------------------------------------


def accepted_or_malformed(frame: bytes) -> bool:
    """Whether it is a frame; whatever it is not, it is MalformedFrame."""
    try:
        decode(frame)
    except MalformedFrame:
        return False
    return True


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_malformed_and_nothing_else(frame: bytes) -> None:
    accepted_or_malformed(frame)


@pytest.mark.parametrize("option", [("strategy", (("hard", "zone", "in", ({},)),)), ("env", (({"A": "1"},), "", ()))])
def test_an_option_by_which_queues_are_looked_up_has_no_mapping_inside(option: tuple[str, Any]) -> None:
    row = (TASK, FUNCTION, b"arguments", (), (option,))
    assert not accepted_or_malformed(encode(1, 0, [(b"L", b"C", m.Submit((row,)))]))


anything = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | texts | small_bytes | st.sampled_from(sorted(m.MESSAGES)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts | numbers, inner, max_size=2),
    max_leaves=12,
)


@settings(max_examples=300)
@given(anything)
def test_arbitrary_data_is_malformed_and_nothing_else(data: Any) -> None:
    accepted_or_malformed(msgpack.packb(data))


@settings(max_examples=300)
@given(st.sampled_from(sorted(m.MESSAGES)), st.lists(anything, max_size=6), st.booleans())
def test_arbitrary_fields_under_a_known_name_are_malformed_and_nothing_else(name: str, fields: list[Any], fitting: bool) -> None:
    if fitting:
        width = len(m.MESSAGES[name]._fields)
        fields = (fields + [[]] * width)[:width]
    accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"C", name, fields]]]))


@settings(max_examples=80)
@given(envelopes.filter(bool), st.data())
def test_a_truncated_frame_is_malformed(messages: list[Any], data: st.DataObject) -> None:
    frame = encode(1, 0, messages)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert not accepted_or_malformed(frame[:cut])
    assert not accepted_or_malformed(frame + b"\x00")


@settings(max_examples=300)
@given(envelopes.filter(bool), st.data())
def test_a_mutated_frame_is_a_frame_or_malformed_and_nothing_else(messages: list[Any], data: st.DataObject) -> None:
    frame = bytearray(encode(1, 0, messages))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    accepted_or_malformed(bytes(frame))


@pytest.mark.parametrize(
    "body",
    [
        [],
        [1, 0],
        [1, 0, [], 0],
        ["1", 0, []],
        [1, 0.0, []],
        [True, 0, []],
        [1, 0, {}],
        [1, 0, [7]],
        [1, 0, [[b"L", b"C", "Ready"]]],
        [1, 0, [["L", b"C", "Ready", []]]],
        [1, 0, [[b"LL", b"C", "Ready", []]]],
        [1, 0, [[b"L", b"", "Ready", []]]],
        [1, 0, [[b"L", b"C", b"Ready", []]]],
        [1, 0, [[b"L", b"C", "Reddy", []]]],
        [1, 0, [[b"L", b"C", "Ready", [1]]]],
        [1, 0, [[b"L", b"C", "Ready", {}]]],
        [1, 0, [[b"L", b"C", "Submit", [{}]]]],
        [1, 0, [[b"L", b"C", "Interrupt", [b"x", True, "cancelled"]]]],
        [1, 0, [[b"L", b"C", "Cancel", [[], 1, False]]]],
        [1, 0, [[b"L", b"C", "Swap", [1, "job", b"k", "expected", b"v"]]]],
    ],
)
def test_a_frame_of_the_wrong_shape_is_malformed(body: Any) -> None:
    assert not accepted_or_malformed(msgpack.packb(body))


def test_a_frame_with_too_many_messages_or_bytes_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [(b"L", b"C", m.Ready())] * 3
    monkeypatch.setattr(codec, "MESSAGES_MAX", 2)
    assert not accepted_or_malformed(encode(1, 0, messages))
    monkeypatch.setattr(codec, "MESSAGES_MAX", 3)
    assert accepted_or_malformed(encode(1, 0, messages))
    monkeypatch.setattr(codec, "FRAME_BYTES_MAX", len(encode(1, 0, messages)) - 1)
    assert not accepted_or_malformed(encode(1, 0, messages))


def test_only_plain_data_can_be_sent() -> None:
    with pytest.raises(TypeError):
        encode(1, 0, [(b"L", b"C", m.Answer(1, object(), ""))])


# --- rows ---------------------------------------------------------------------------------------------------------------------------

GOOD_TASK = (TASK, FUNCTION, b"a", (OBJECT,))
GOOD_FUNCTION = (FUNCTION, "f", b"p", ())
GOOD_OBJECT = (OBJECT, 0, b"v", (OBJECT,))
BAD_TASKS = [
    7,
    (),
    GOOD_TASK[:3],
    (*GOOD_TASK, None, None),
    (*GOOD_TASK, 7),
    (*GOOD_TASK, "options"),
    (TASK[1:], FUNCTION, b"a", ()),
    (TASK + b"t", FUNCTION, b"a", ()),
    ("t" * TASK_BYTES, FUNCTION, b"a", ()),
    (TASK, FUNCTION[1:], b"a", ()),
    (TASK, None, b"a", ()),
    (TASK, FUNCTION, "a", ()),
    (TASK, FUNCTION, b"a", None),
    (TASK, FUNCTION, b"a", (OBJECT[1:],)),
    (TASK, FUNCTION, b"a", (OBJECT, OBJECT[1:])),
    (TASK, FUNCTION, b"a", (7,)),
]
BAD_FUNCTIONS = [
    GOOD_FUNCTION[:3],
    (FUNCTION[1:], "f", b"p", ()),
    (FUNCTION, b"f", b"p", ()),
    (FUNCTION, "f", "p", ()),
    (FUNCTION, "f", b"p", None),
]
BAD_OBJECTS = [
    GOOD_OBJECT[:3],
    (OBJECT[1:], 0, b"v", ()),
    (OBJECT, "0", b"v", ()),
    (OBJECT, True, b"v", ()),
    (OBJECT, 0, "v", ()),
    (OBJECT, 0, b"v", None),
    (OBJECT, 0, b"v", (b"x",)),
]
GOOD_PUT = (OBJECT, b"v", (OBJECT,), False)
BAD_PUTS = [
    GOOD_PUT[:3],
    (b"", b"v", (), False),
    (OBJECT, 7, (), False),
    (OBJECT, b"v", (TASK,), False),
    (OBJECT, b"v", (), 0),
    (OBJECT, b"v", 0, True),
]
NO_ENDS = ((), (), (), b"", (), (), b"")
TIMES = b"t" * TIME_BYTES
GOOD_PLACE = (OBJECT, 0, 1)
GOOD_RESULT = (TASK, 0, (b"v",))

CASES: list[tuple[str, int, tuple[Any, ...], Any, list[Any]]] = [
    # message, which field, all fields, a good row, bad rows
    ("Submit", 0, ((),), GOOD_TASK, BAD_TASKS),
    ("InheritTasks", 0, ((), ()), GOOD_TASK, BAD_TASKS),
    ("InheritTasks", 1, ((), ()), GOOD_FUNCTION, BAD_FUNCTIONS),
    ("Dispatch", 0, ((), (), 0, 0), GOOD_TASK, BAD_TASKS),
    (
        "Dispatch",
        1,
        ((), (), 0, 0),
        (0, 0, (b"v",), ()),
        [(0, 0, ()), ("0", 0, (), ()), (0, None, (), ()), (0, 0, None, ()), (0, 0, (), b"")],
    ),
    ("SubmitDirect", 1, (b"8" * INCARNATION_BYTES, (), 0), GOOD_TASK, BAD_TASKS),
    ("SubmittedDirect", 1, (b"8" * INCARNATION_BYTES, ()), GOOD_TASK, BAD_TASKS),
    ("DirectAllowed", 1, (b"8" * INCARNATION_BYTES, (), 0), FUNCTION, [OBJECT, "f", None, ()]),
    ("Completed", 4, NO_ENDS, (0, (), ()), [(0, ()), (b"", (), ()), (0, None, ()), (0, (), 7)]),
    ("Completed", 5, NO_ENDS, (FUNCTION, 1, 0.5), [(FUNCTION, 1), ("f", 1, 0.5), (FUNCTION, 1.0, 0.5), (FUNCTION, 1, "0.5")]),
    ("Results", 0, ((),), GOOD_RESULT, [GOOD_RESULT[:2], (OBJECT, 0, ()), (TASK, b"", ()), (TASK, 0, b"v")]),
    ("Objects", 0, ((),), GOOD_OBJECT, BAD_OBJECTS),
    ("OfferResults", 0, ((),), GOOD_OBJECT, BAD_OBJECTS),
    ("Put", 0, ((),), GOOD_PUT, BAD_PUTS),
    (
        "RunningTasks",
        0,
        ((), ()),
        (GOOD_TASK, 0, True, ""),
        [(GOOD_TASK, 0, True), (7, 0, True, ""), (GOOD_TASK, None, True, ""), (GOOD_TASK, 0, 1, ""), (GOOD_TASK, 0, True, b"")]
        + [(bad, 0, True, "") for bad in BAD_TASKS],
    ),
    ("RunningTasks", 1, ((), ()), 3, ["3", None, 3.0, b"", ()]),
    ("Export", 0, ((),), GOOD_FUNCTION, BAD_FUNCTIONS),
    ("Functions", 0, ((),), GOOD_FUNCTION, BAD_FUNCTIONS),
    ("Pinned", 0, ((),), GOOD_PLACE, [GOOD_PLACE[:2], (TASK, 0, 1), (OBJECT, "0", 1), (OBJECT, 0, None)]),
    ("GrantsHeld", 0, ((),), (0, 1, 2), [(0, 1), (b"", 1, 2), (0, 1.0, 2), (0, 1, None)]),
    ("Write", 1, (0, (), ()), ("job", b"k", b"v"), [("job", b"k"), (b"job", b"k", b"v"), ("job", "k", b"v"), ("job", b"k", None)]),
    ("Write", 2, (0, (), ()), ("job", b"k"), [("job",), ("job", b"k", b"v"), (b"job", b"k"), ("job", 7)]),
    ("Blocked", 1, (TASK, (), (), True), OBJECT, [TASK, "o", None, b""]),
    ("Blocked", 2, (TASK, (), (), True), TASK, [OBJECT, "t", None, b""]),
    ("WaitDetails", 2, (TASK, "", (), True), (OBJECT, TASK), [(TASK, TASK), (OBJECT, OBJECT), (OBJECT,), (OBJECT, None)]),
    ("Cancel", 0, ((), False, False), OBJECT, [TASK, "o" * OBJECT_BYTES, 7]),
    ("PutCommitted", 0, ((), ""), OBJECT, [TASK, "o" * OBJECT_BYTES, 7]),
    ("WatchReferences", 0, ((), b""), OBJECT, [TASK, "o" * OBJECT_BYTES, 7]),
    *((name, 0, ((),), OBJECT, [TASK, "o" * OBJECT_BYTES, 7, ()]) for name in OBJECT_LISTS),
    ("TakeBack", 0, ((),), TASK, [OBJECT, "t" * TASK_BYTES, 7]),
    ("FindActors", 0, ((),), TASK, [OBJECT, "t" * TASK_BYTES, 7]),
    ("OutcomesRecorded", 0, ((),), TASK, [OBJECT, "t" * TASK_BYTES, 7]),
    (
        "ActorLocations",
        0,
        ((),),
        (TASK, 1, b"i", 0, True, b"", b""),
        [
            (TASK, 1, b"i", b"", b""),
            (OBJECT, 1, b"i", 0, True, b"", b""),
            (TASK, "1", b"i", 0, True, b"", b""),
            (TASK, 1, b"i", 0, 1, b"", b""),
        ],
    ),
    (
        "Call",
        2,
        (TASK, 0, ()),
        (TASK, "method", b"a"),
        [
            (TASK, "method"),
            (OBJECT, "method", b"a"),
            (TASK, b"method", b"a"),
            (TASK, "method", None),
            (TASK, "method", b"a", (OBJECT,), (), None),
            (TASK, "method", b"a", (TASK,), (b"v",), None),
            (TASK, "method", b"a", (), (), 7),
            (TASK, "method", b"a", ()),
        ],
    ),
    ("Returned", 0, ((),), GOOD_RESULT, [GOOD_RESULT[:2], (OBJECT, 0, ()), (TASK, b"", ()), (TASK, 0, b"v")]),
    (
        "CallOutcomes",
        0,
        ((),),
        (TASK, b"8" * INCARNATION_BYTES, 0, (b"v",), ((OBJECT,),)),
        [
            (TASK, b"8" * INCARNATION_BYTES, 0, (b"v",)),
            (TASK, b"7", 0, (b"v",), ()),
            (OBJECT, b"8" * INCARNATION_BYTES, 0, (b"v",), ()),
            (TASK, b"8" * INCARNATION_BYTES, 0, (b"v",), ((TASK,),)),
            (TASK, b"8" * INCARNATION_BYTES, 0, (b"v",), (5,)),
            (TASK, b"8" * INCARNATION_BYTES, 0, (b"v",), ({5: 1},)),
        ],
    ),
    ("ExpectResults", 0, ((),), (OBJECT, TASK), [(OBJECT,), (TASK, TASK), (OBJECT, OBJECT), ("o", TASK), (OBJECT, TASK, "3")]),
    (
        "Yielded",
        0,
        ((),),
        (TASK, 0, 1, b"v", (OBJECT,)),
        [
            (TASK, 0, 1, b"v"),
            (OBJECT, 0, 1, b"v", ()),
            (TASK, 0, -1, b"v", ()),
            (TASK, 0, STREAM_VALUES_MAX + 1, b"v", ()),
            (TASK, 0, 1, "v", ()),
            (TASK, 0, 1, b"v", (TASK,)),
        ],
    ),
    ("HostedActors", 0, ((),), (GOOD_TASK, 0), [(GOOD_TASK,), (7, 0), (GOOD_TASK, None), *((bad, 0) for bad in BAD_TASKS)]),
    ("LogAppended", 5, (TASK, 0, 1, 1, b"", (), ()), OBJECT, [TASK, "o" * OBJECT_BYTES, 7]),
    ("LogAppended", 6, (TASK, 0, 1, 1, b"", (), ()), OBJECT, [TASK, "o" * OBJECT_BYTES, 7]),
    ("Checkpoint", 7, (TASK, 0, 1, 1, 0, 1, b"", ()), OBJECT, [TASK, "o" * OBJECT_BYTES, 7]),
    ("OutcomesReceived", 1, (TASK, (), True), TASK, [OBJECT, "t" * TASK_BYTES, 7]),
    ("ReplayProgress", 3, (TASK, 0, 0, ()), b"8" * INCARNATION_BYTES, [OBJECT, "8" * INCARNATION_BYTES, 7]),
    ("ReplayProgress", 3, (TASK, 0, 0, ()), b"8" * 2 * INCARNATION_BYTES, [OBJECT]),
    ("CallTimes", 0, ((), b"", (), b""), (FUNCTION, "Class.method"), [(FUNCTION,), ("f", "m"), (FUNCTION, b"m"), (FUNCTION + b"x", "m")]),
    ("CallTimes", 2, ((), b"", (), b""), (TASK, (OBJECT,)), [(TASK,), (TASK, OBJECT), (TASK + b"x", (OBJECT,)), (TASK, (OBJECT + b"x",))]),
    (
        "HostDelays",
        1,
        (b"", ()),
        (TASK, TASK, (OBJECT,), (TASK,), True),
        [
            (TASK,),
            (TASK, OBJECT, (), (), True),
            (TASK, TASK, (TASK,), (), True),
            (TASK, TASK, (), (OBJECT,), True),
            (TASK, TASK, (), (), 1),
        ],
    ),
    ("ReturnGrant", 2, (0, 0, ()), (64, 128), [(64,), (64, 128, 0), (64, "128"), (b"64", 128)]),
    ("TakenBack", 0, ((), b""), TASK, [OBJECT, "t" * TASK_BYTES, 7]),
]


def frame_of(name: str, field: int, fields: tuple[Any, ...], rows: list[Any]) -> bytes:
    given_fields = (*fields[:field], rows, *fields[field + 1 :])
    return msgpack.packb([1, 0, [[b"L", b"C", name, given_fields]]])


def test_every_row_check_has_cases() -> None:
    without = {"KillActor", "ActorExiting", "StopCall", "LogCommitted", "CallCounts", "RetireActor", "ActorEnded", "DirectCounts"}
    without |= {"DrainActor", "ActorDrained"}
    assert {name for name, *_ in CASES} | without == OF_ROWS, "those have no rows"


@pytest.mark.parametrize(("name", "field", "fields", "good", "bad"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_a_bad_row_is_refused_alone_and_in_any_company(name: str, field: int, fields: tuple[Any, ...], good: Any, bad: list[Any]) -> None:
    for rows in ([], [good], [good, good], [good] * 5):
        assert accepted_or_malformed(frame_of(name, field, fields, rows)), rows
    for row in bad:
        for rows in ([row], [row, row], [good, row], [row, good], [good, good, row, good]):
            assert not accepted_or_malformed(frame_of(name, field, fields, rows)), rows


def test_deeply_nested_data_is_malformed_and_nothing_else() -> None:
    deep = b"\x91" * 1000 + b"\x90"
    row = b"\x94" + msgpack.packb(TASK) + deep + msgpack.packb(b"") + b"\x90"
    frame = b"\x93\x01\x00\x91\x94" + msgpack.packb(b"L") + msgpack.packb(b"C") + msgpack.packb("Submit") + b"\x91\x92" + row + row
    assert not accepted_or_malformed(frame)


@pytest.mark.parametrize("value", [(-1, 5), (1, -5), (1,), (1, 2, 3), (1, "5"), (1, True), 7, "text", (b"", 1)])
def test_values_of_calls_are_bytes_or_places_or_nothing(value: Any) -> None:
    def frame(value: Any) -> Any:
        return msgpack.packb([1, 0, [[b"C", b"A", "Call", [TASK, 1, [[TASK, "method", b"", [OBJECT], [value], None]]]]]])

    assert all(accepted_or_malformed(frame(each)) for each in (b"value", None, (0, 5)))
    assert not accepted_or_malformed(frame(value))


def test_columns_of_a_trace_of_calls_have_one_length() -> None:
    for length, accepted in ((0, True), (EACH_BYTES, True), (EACH_BYTES + 1, False), (EACH_BYTES - 16, False)):
        assert accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"A", "CallTimes", [[], b"t" * length, [], b""]]]])) == accepted
    for length, accepted in ((0, True), (2 * WAITED_BYTES, True), (WAITED_BYTES, False), (2 * WAITED_BYTES + 1, False)):
        times = [[], b"t" * 2 * EACH_BYTES, [], b"w" * length]
        assert accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"A", "CallTimes", times]]])) == accepted


@pytest.mark.parametrize(
    ("columns", "accepted"),
    [
        (((0,), (0,), ((b"v",),), TASK, TIMES), True),
        (((0,), (0,), ((b"v",),), TASK, b""), True),
        (((0, 1), (0, 1), ((), (b"v",)), TASK * 2, TIMES * 2), True),
        (((0,), (0,), ((b"v",),), OBJECT, TIMES), False),
        (((0,), (0,), ((b"v",),), TASK * 2, TIMES), False),
        (((0,), (0,), ((b"v",),), TASK, TIMES[1:]), False),
        (((0,), (0,), ((b"v",),), TASK, TIMES * 2), False),
        (((0,), (0,), ((b"v",),), b"", b""), False),
        (((0, 0), (0,), ((b"v",),), TASK, TIMES), False),
        (((0,), (0, 0), ((b"v",),), TASK, TIMES), False),
        (((0,), (0,), ((), (b"v",)), TASK, TIMES), False),
        ((("0",), (0,), ((b"v",),), TASK, TIMES), False),
        (((0,), (None,), ((b"v",),), TASK, TIMES), False),
        (((0,), (0,), (b"v",), TASK, TIMES), False),
        (((0,), (0,), ((b"v",),), (TASK,), TIMES), False),
    ],
)
def test_columns_of_completions_have_one_length_and_the_right_types(columns: tuple[Any, ...], accepted: bool) -> None:
    for durations in ((), ((FUNCTION, 1, 0.5),)):  # With these, one attempt has a check of its own.
        fields = (*columns[:4], (), durations, columns[4])
        assert accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"W", "Completed", fields]]])) == accepted


@pytest.mark.parametrize(
    "duration", [(FUNCTION, 1), ("f", 1, 0.5), (FUNCTION, 1.0, 0.5), (FUNCTION, 1, "0.5"), (FUNCTION, 1, 0.5, 0), 7, None]
)
def test_the_duration_of_a_lone_completion_is_checked_too(duration: Any) -> None:
    for seconds, accepted in (((FUNCTION, 1, 0.5), True), ((FUNCTION, 1, 1), True), (duration, False)):
        fields = ((0,), (0,), ((b"v",),), TASK, (), (seconds,), TIMES)
        assert accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"W", "Completed", fields]]])) == accepted


@pytest.mark.parametrize(
    "options",
    [
        (("strategy", (("hard", "zone", "in", (b"x", {})),)),),
        (("strategy", (("hard", "zone", "in", "a"),)),),
        (("strategy", (("hard", "zone", "in"),)),),
        (("strategy", 7),),
        (("strategy", (("hard", "zone", "in", ("a",)),), 1),),
        (("strategy", (("hard", "zone", "in", ("a",)),)), ("num_returns", -1)),
        (("num_returns", -1),),
    ],
)
def test_a_strategy_that_came_before_lets_no_other_options_through(options: Any) -> None:
    for each, accepted in (((("strategy", (("hard", "zone", "in", ("a",)),)),), True), (options, False)) * 2:
        frame = msgpack.packb([1, 0, [[b"L", b"C", "Submit", [[(TASK, FUNCTION, b"arguments", (), each)]]]]])
        assert accepted_or_malformed(frame) == accepted


@pytest.mark.parametrize("numbers", [(-1, 1, 1), (0, -1, 1), (0, 1, -1), (0, 1, LOG_NUMBERS_MAX)])
@pytest.mark.parametrize("name", ["LogAppended", "Checkpoint"])
def test_numbers_of_logged_calls_fit_into_keys(name: str, numbers: tuple[int, ...]) -> None:
    rest = (b"", (), ()) if name == "LogAppended" else (0, 1, b"", ())
    for fields, accepted in (((TASK, 0, 1, 1, *rest), True), ((TASK, *numbers, *rest), False)):
        assert accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"A", name, fields]]])) == accepted


@pytest.mark.parametrize(
    ("numbers", "accepted"),
    [((0, 0), True), ((-1, 0), False), ((0, -1), False), ((LOG_NUMBERS_MAX, 0), False), ((0, LOG_NUMBERS_MAX), False)],
)
def test_counts_of_calls_have_the_range_of_numbers_of_logged_calls(numbers: tuple[int, int], accepted: bool) -> None:
    assert accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"A", "CallCounts", (TASK, *numbers)]]])) == accepted
    assert not accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"A", "CallCounts", (OBJECT, *numbers)]]]))


@pytest.mark.parametrize(("part", "parts"), [(-1, 1), (1, 1), (0, 0), (0, CHECKPOINT_PARTS_MAX + 1)])
def test_a_part_of_a_checkpoint_is_one_of_them(part: int, parts: int) -> None:
    assert not accepted_or_malformed(msgpack.packb([1, 0, [[b"L", b"A", "Checkpoint", (TASK, 0, 1, 1, part, parts, b"", ())]]]))


@pytest.mark.parametrize("other", [GOOD_TASK, (*GOOD_TASK, None), (*GOOD_TASK, (("name", "x"),))])
@pytest.mark.parametrize("options", [None, (), (("name", "x"),), 7, "x", b"x", 1.5, True])
def test_rows_of_both_widths_in_one_batch_are_checked_in_all_their_fields(other: Any, options: Any) -> None:
    row = (*GOOD_TASK, options)
    alone = accepted_or_malformed(frame_of("Submit", 0, ((),), [row]))
    assert alone == (options is None or type(options) is tuple)
    assert accepted_or_malformed(frame_of("Submit", 0, ((),), [other, row])) == alone
    assert accepted_or_malformed(frame_of("Submit", 0, ((),), [row, other])) == alone


@settings(max_examples=300)
@given(st.lists(st.sampled_from([GOOD_TASK, (*GOOD_TASK, None), *BAD_TASKS]), min_size=2, max_size=4))
def test_one_row_and_many_rows_are_judged_alike(rows: list[Any]) -> None:
    each = [accepted_or_malformed(frame_of("Submit", 0, ((),), [row])) for row in rows]
    assert accepted_or_malformed(frame_of("Submit", 0, ((),), rows)) == all(each)


@pytest.mark.parametrize("row", [GOOD_TASK, *BAD_TASKS])
def test_what_a_worker_refuses_of_a_direct_submission_is_refused_by_the_scheduler_too(row: Any) -> None:
    """Only the scheduler answers, so the worker must not be the only one to refuse."""
    both = m.SubmitDirect(b"8" * INCARNATION_BYTES, (row,), 0), m.SubmittedDirect(b"8" * INCARNATION_BYTES, (row,))
    reasons = []
    for messages in both:
        ((_, _, accepted),) = salvage(encode(1, 0, [(b"L", b"C", messages)]))[2]
        reasons.append(accepted.text.partition(": ")[2] if isinstance(accepted, Unread) else "")
    assert reasons[0] == reasons[1]
    assert (reasons[0] == "") == (row == GOOD_TASK)


def test_a_row_of_a_direct_submission_fits_into_one_message() -> None:
    assert CALL_BYTES_MAX + ROW_BYTES < MESSAGE_BYTES_MAX
