"""Messages between nodes, for hypothesis: well formed, and otherwise anything."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from zfabric.machines.common.tables import pack_row
from zfabric.protocol import messages as m
from zfabric.protocol.access import READ_TABLES, WRITE_TABLE
from zfabric.protocol.checks import SECONDS_MAX, SIZE_MAX
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import (  # fmt: skip
    ATTEMPT_MAX,
    FUNCTION_BYTES,
    INCARNATION_BYTES,
    JOB_BYTES,
    NODE_BYTES,
    NODE_NUMBER_MAX,
    OBJECT_BYTES,
    TASK_BYTES,
)
from zfabric.protocol.inside import with_refs
from zfabric.protocol.messages.cluster import KEY_BYTES
from zfabric.protocol.messages.delegation import LEVELS, RETIRED, RETURN_REASONS
from zfabric.protocol.messages.failover import PENDING
from zfabric.protocol.messages.relays import LOG_TABLES
from zfabric.protocol.messages.rows import STOP_REASONS
from zfabric.protocol.options import LOG_NUMBERS_MAX, OPTION_TYPES, GroupTerm, group_strategy

Strategy = st.SearchStrategy[Any]


def exactly(length: int) -> Strategy:
    """Bytes of this length."""
    return st.binary(min_size=length, max_size=length)


def many(each: Strategy, most: int = 4) -> Strategy:
    """A tuple of these."""
    return st.lists(each, max_size=most).map(tuple)


class Pool(NamedTuple):
    """Where ids and numbers come from: from a few that a machine knows, or any."""

    jobs: Strategy = exactly(JOB_BYTES)
    tasks: Strategy = exactly(TASK_BYTES)
    functions: Strategy = exactly(FUNCTION_BYTES)
    objects: Strategy = exactly(OBJECT_BYTES)
    nodes: Strategy = exactly(NODE_BYTES)
    attempts: Strategy = st.integers(0, ATTEMPT_MAX)
    numbers: Strategy = st.integers(0, SIZE_MAX)
    tokens: Strategy = st.integers(-(2**63), 2**64 - 1)


texts = st.text(max_size=6)
payloads = st.binary(max_size=12)
seconds = st.floats(0, SECONDS_MAX) | st.integers(0, 10)
answers = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts | payloads,
    lambda inner: many(inner, 3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def failures(pool: Pool) -> Strategy:
    """The outcome of what failed."""
    return st.one_of(payloads, st.just(pack_failure("FabricError", "x")), st.builds(with_refs, payloads, many(pool.objects, 2)))


def options(pool: Pool) -> Strategy:
    """Options of a function or a task."""
    known = st.sampled_from(
        [
            ("num_returns", 2),
            ("num_returns", 0),
            ("demand", (("CPU", 5000),)),
            ("demand", (("nothing", 7),)),
            ("demand", (("CPU", -5),)),
            ("stream", 3),
            ("actor", b""),
            ("actor", b"handle"),
            ("lightweight", True),
            ("max_concurrency", 3),
            ("inline", False),
            ("max_retries", 0),
            ("timeout", 0.5),
            ("env", ((("A", "b"),), "", ())),
            ("strategy", (("spread", "", "", ()),)),
            ("strategy", (("hard", "zone", "in", ("a",)),)),
            ("strategy", (("hard", "zone", "in", (5, None)),)),
            ("strategy", (("what", "zone", "near", ()),)),
            ("strategy", group_strategy(GroupTerm(b"g" * 16, b"thisnode", 0, True))),
            ("captured", group_strategy(GroupTerm(b"g" * 16, b"\x02node B.", -1, True))),
            ("num_returns", None),
        ]
    )
    contains = st.tuples(st.just("contains"), many(pool.objects))
    unknown = st.tuples(texts.filter(lambda name: name not in OPTION_TYPES), answers)
    return many(known | contains | unknown, 2)


def ended(pool: Pool) -> Strategy:
    """What ``Ended.completed`` has."""
    crash = st.tuples(st.booleans(), pool.numbers, pool.numbers, pool.numbers, pool.numbers, texts, st.booleans()).map(pack_row)
    values = many(payloads | pool.numbers, 3)
    row = st.one_of(
        st.tuples(pool.tasks, pool.attempts, st.just(m.OK), values),
        st.tuples(pool.tasks, pool.attempts, st.sampled_from([1, 2, 3, 4, 6]), many(failures(pool), 2)),
        st.tuples(pool.tasks, pool.attempts, st.just(m.LOST), many(crash, 1)),
    )

    def completed(rows: list[Any], extras: list[Any], durations: Any) -> Any:
        extras = [(index % len(rows), contained, kept) for index, contained, kept in extras] if rows else []
        return tuple(m.Completed.of(tuple(rows), tuple(extras), durations))

    extras = st.lists(st.tuples(st.integers(0, 3), many(many(pool.objects, 2), 2), many(pool.objects, 2)), max_size=2)
    durations = many(st.tuples(pool.functions, pool.numbers, seconds), 2)
    return st.builds(completed, st.lists(row, max_size=3), extras, durations)


def delegate(about: Any, functions: Any, rows: Any, *rest: Any) -> m.Delegate:
    """A ``Delegate`` whose tasks are of its job."""
    return m.Delegate(about, functions, _of_job(about[0], rows), *rest)


def entries(pool: Pool, *kinds: str) -> Strategy:
    """Entries of a ledger."""
    others = {
        **dict.fromkeys((m.ENTRUSTED, m.UNFINISHED, m.GRANTED, m.TAKEN), pool.tasks),
        m.LIVING: pool.jobs,
        m.LEAVING: pool.nodes,
        m.NAME: st.tuples(pool.tasks, texts, texts),
    }
    return many(st.one_of([st.tuples(st.just(kind), many(others.get(kind, pool.objects))) for kind in kinds]))


def entrust(number: int, job: bytes, functions: Any, rows: Any, homes: Any) -> m.Entrust:
    """An ``Entrust`` whose tasks are of its job."""
    rows = _of_job(job, rows)
    return m.Entrust(number, job, functions, rows, homes, tuple(row[0] for row in rows[:1]))


def _of_job(job: bytes, rows: Any) -> Any:
    return tuple((job + row[0][JOB_BYTES:], *row[1:]) for row in rows)


def node_messages(pool: Pool = Pool()) -> dict[str, Strategy]:  # noqa: B008
    """A strategy for each message between nodes, by name."""
    numbers = pool.numbers
    homes = many(st.tuples(pool.objects, pool.nodes), 2)
    objects, tasks = many(pool.objects), many(pool.tasks)
    log_numbers, log_tables = st.integers(0, LOG_NUMBERS_MAX - 1), st.sampled_from(sorted(LOG_TABLES))
    task_rows = many(
        st.tuples(pool.tasks, pool.functions, payloads, many(pool.objects, 2))
        | st.tuples(pool.tasks, pool.functions, payloads, many(pool.objects, 2), st.none() | options(pool))
    )
    functions = many(st.tuples(pool.functions, texts, payloads, options(pool)), 2)
    offers = st.builds(lambda size, nodes: (size, *nodes), numbers, many(pool.nodes, 3))
    values = many(st.tuples(pool.objects, payloads | offers, many(pool.objects, 2)), 2)
    fetched = st.one_of(
        st.tuples(pool.objects, st.just(m.OK), payloads, many(pool.objects, 2)),
        st.tuples(pool.objects, st.just(m.OK), st.just(()) | offers, many(pool.objects, 2)),
        st.tuples(pool.objects, st.integers(1, 6), failures(pool), many(pool.objects, 2)),
    )
    remains = st.one_of(
        st.tuples(pool.objects, st.just(PENDING), st.just(b""), many(pool.objects, 2)),
        st.tuples(pool.objects, st.just(m.OK), numbers, many(pool.objects, 2)),
        st.tuples(pool.objects, st.integers(1, 6), failures(pool), many(pool.objects, 2)),
    )
    states, attempts = st.integers(m.CREATING, m.DEAD), pool.attempts
    locations = st.tuples(pool.tasks, states, pool.nodes | st.just(b""), attempts, st.booleans(), pool.tasks | st.just(b""), failures(pool))
    calls = st.tuples(pool.tasks, texts, payloads) | st.builds(
        lambda head, named, settings: (*head, named, (None,) * len(named), settings),
        st.tuples(pool.tasks, texts, payloads),
        many(pool.objects, 2),
        st.none() | options(pool),
    )
    inside = many(many(pool.objects, 2), 2)
    call_ends = st.one_of(
        st.tuples(pool.tasks, exactly(INCARNATION_BYTES), st.just(m.OK), many(payloads | pool.numbers, 2), inside),
        st.tuples(pool.tasks, exactly(INCARNATION_BYTES), st.integers(1, 6), many(failures(pool), 2), inside),
    )
    yields = st.tuples(pool.tasks, pool.attempts, st.integers(0, 4), payloads | numbers | st.none(), many(pool.objects, 2))
    amounts, labels = many(st.tuples(texts, st.integers(0, 10**6)), 2), many(st.tuples(texts, texts), 2)
    demand = many(st.tuples(texts, st.integers(-10, 10**5)), 2)
    questions = st.tuples(pool.tokens, demand, pool.numbers, seconds, many(st.tuples(pool.nodes, pool.tokens), 2))
    members = st.tuples(pool.nodes, st.integers(0, NODE_NUMBER_MAX), texts, texts, texts, exactly(KEY_BYTES), amounts, labels, pool.numbers)
    small = st.integers(0, 3)
    writers = st.tuples(pool.jobs, pool.nodes, exactly(INCARNATION_BYTES), numbers, numbers)
    bundle = st.sampled_from([(("CPU", 5000),), (("CPU", 10_000),), (("nothing", 7),), ()])
    bundles = st.lists(st.tuples(small, bundle), min_size=1, max_size=3, unique_by=lambda row: row[0]).map(tuple)
    return {
        "RegisterNode": st.builds(m.RegisterNode, pool.tokens, exactly(INCARNATION_BYTES), st.just(b"") | exactly(INCARNATION_BYTES)),
        "Delegate": st.builds(
            delegate,
            st.tuples(pool.jobs, texts, pool.nodes),
            functions,
            task_rows,
            many(st.tuples(pool.tokens, pool.attempts), 2),
            values,
            homes,
            pool.attempts,
        ),
        "StopDelegated": st.builds(
            m.StopDelegated, pool.tasks, pool.attempts, st.sampled_from([*sorted(STOP_REASONS), RETIRED]), st.booleans()
        ),
        "StopChildren": st.builds(m.StopChildren, many(exactly(12), 2), tasks, st.sampled_from(sorted(STOP_REASONS))),
        "Cancel": st.builds(m.Cancel, objects, st.booleans(), st.booleans()),
        "Reclaim": st.builds(m.Reclaim, tasks),
        "Reclaimed": st.builds(m.Reclaimed, tasks, st.sampled_from(sorted(RETURN_REASONS))),
        "Ended": st.builds(m.Ended, numbers, ended(pool), homes),
        "RelayedYields": st.builds(m.RelayedYields, numbers, many(yields, 3), homes),
        "AllowYields": st.builds(m.AllowYields, pool.tasks, st.just(m.CLOSE) | st.integers(0, 100)),
        "EndsReceived": st.builds(m.EndsReceived, numbers, many(st.tuples(exactly(INCARNATION_BYTES), numbers), 3)),
        "ClaimValues": st.builds(m.ClaimValues, many(st.tuples(pool.objects, many(pool.objects, 2)), 3), homes),
        "UpdateLedger": st.builds(
            m.UpdateLedger,
            numbers,
            entries(pool, m.HOLD, m.SEARCH, m.ROW, m.LIVING, m.LEAVING, m.COPY, m.NAME),
            entries(pool, m.HOLD, m.ROW, m.ENTRUSTED, m.UNFINISHED, m.LIVING, m.NAME),
        ),
        "LedgerUpdated": st.builds(m.LedgerUpdated, numbers, entries(pool, m.SEARCH, m.ENTRUSTED, m.COPIED, m.GRANTED, m.TAKEN)),
        "FetchValues": st.builds(m.FetchValues, objects),
        "FetchedValues": st.builds(m.FetchedValues, many(fetched), homes),
        "CopyLost": st.builds(m.CopyLost, pool.objects, texts),
        "Entrust": st.builds(entrust, numbers, pool.jobs, functions, task_rows, homes),
        "Holdings": st.builds(
            m.Holdings, st.just(b"") | pool.nodes, many(remains, 3), homes, many(st.tuples(pool.tasks, pool.attempts), 2), st.booleans()
        ),
        "TookOver": st.builds(m.TookOver, pool.nodes),
        "Write": st.builds(
            m.Write,
            numbers,
            many(st.tuples(st.just(WRITE_TABLE), pool.objects, payloads), 3),
            many(st.tuples(st.just(WRITE_TABLE), pool.objects), 3),
        ),
        "DeleteRows": st.builds(m.DeleteRows, numbers, st.just(WRITE_TABLE), pool.jobs, pool.jobs),
        "Read": st.builds(m.Read, numbers, st.sampled_from(sorted(READ_TABLES)), many(st.one_of(pool.nodes, payloads), 3)),
        "PutKey": st.builds(m.PutKey, numbers, writers, texts, payloads, payloads, small, st.booleans(), st.booleans()),
        "PutPart": st.builds(
            lambda token, writer, part: m.PutPart(token, writer, 0, len(part), part), numbers, writers, st.binary(min_size=1)
        ),
        "DropUpload": st.builds(m.DropUpload, numbers, writers),
        "DeleteKeys": st.builds(m.DeleteKeys, numbers, writers, texts, payloads, st.booleans()),
        "GetKey": st.builds(m.GetKey, numbers, texts, payloads, payloads, st.integers(-1, 3)),
        "ListKeys": st.builds(m.ListKeys, numbers, texts, payloads, payloads),
        "EndKeys": st.builds(m.EndKeys, numbers, pool.jobs),
        "KeyAnswer": st.builds(m.KeyAnswer, numbers, many(st.booleans() | payloads, 3), texts, texts),
        "FindActors": st.builds(m.FindActors, tasks),
        "ActorLocations": st.builds(m.ActorLocations, many(locations, 3)),
        "KillActor": st.builds(m.KillActor, pool.tasks, st.booleans()),
        "CallerGone": st.builds(m.CallerGone, exactly(INCARNATION_BYTES)),
        "RelayedCalls": st.builds(m.RelayedCalls, pool.tasks, pool.attempts, many(calls, 3), exactly(INCARNATION_BYTES), homes),
        "RelayedReceipt": st.builds(m.RelayedReceipt, pool.tasks, tasks, st.booleans(), exactly(INCARNATION_BYTES)),
        "StopRelayed": st.builds(m.StopRelayed, pool.tasks, pool.tasks, st.sampled_from(sorted(STOP_REASONS))),
        "ActorExiting": st.builds(m.ActorExiting, pool.tasks),
        "LifeEnded": st.builds(
            m.LifeEnded,
            pool.tasks,
            pool.attempts,
            st.just(b"") | pool.tasks,
            texts,
            texts,
            st.tuples(*(st.integers(0, 9),) * 4),
            texts,
            st.integers(-1, 9),
        ),
        "RelayedBlock": st.builds(m.RelayedBlock, pool.tasks, log_numbers, log_numbers, log_numbers, payloads, objects, objects, homes),
        "RelayedCheckpoint": st.builds(
            m.RelayedCheckpoint, pool.tasks, log_numbers, log_numbers, log_numbers, st.just(0), st.integers(1, 3), payloads, objects, homes
        ),
        "LogRecorded": st.builds(m.LogRecorded, pool.tasks, pool.attempts, numbers),
        "ReadLog": st.builds(m.ReadLog, pool.tasks, pool.attempts, log_tables, payloads),
        "LogPage": st.builds(
            m.LogPage, pool.tasks, pool.attempts, log_tables, payloads, many(st.tuples(payloads, payloads)), st.booleans(), objects, homes
        ),
        "ReplayProgress": st.builds(m.ReplayProgress, pool.tasks, st.integers(0, 9), st.integers(0, 9), st.just(())),
        "CallCounts": st.builds(m.CallCounts, pool.tasks, log_numbers, log_numbers),
        "CallsEnded": st.builds(m.CallsEnded, numbers, many(call_ends, 3), homes),
        "EndJob": st.builds(m.EndJob, pool.jobs),
        "JobGone": st.builds(m.JobGone, pool.jobs),
        "JobOutput": st.builds(
            m.JobOutput,
            pool.jobs,
            many(st.tuples(pool.tokens, texts, texts, texts), 2),
            many(st.tuples(st.sampled_from(sorted(LEVELS)), texts), 2),
        ),
        "Heartbeat": st.builds(m.Heartbeat, pool.nodes, demand, demand, pool.tokens, seconds, demand),
        "Place": st.builds(m.Place, many(questions, 2)),
        "Placed": st.builds(m.Placed, many(st.tuples(pool.tokens, many(st.tuples(pool.nodes, numbers), 2)), 2)),
        "NewJob": st.builds(m.NewJob, numbers),
        "JobNumber": st.builds(m.JobNumber, numbers, numbers),
        "Written": st.builds(m.Written, numbers, st.booleans(), texts),
        "AskRoom": st.builds(m.AskRoom, numbers),
        "NodeRoom": st.builds(m.NodeRoom, numbers, amounts, amounts),
        "PrepareBundles": st.builds(m.PrepareBundles, pool.tasks, numbers, st.booleans(), bundles),
        "BundlesPrepared": st.builds(m.BundlesPrepared, pool.tasks, numbers, st.booleans()),
        "HoldBundles": st.builds(m.HoldBundles, many(st.tuples(pool.tasks, small, st.booleans()), 3)),
        "CommitBundles": st.builds(m.CommitBundles, pool.tasks),
        "FreeBundles": st.builds(m.FreeBundles, pool.tasks, many(small, 2), texts),
        "WatchGroup": st.builds(m.WatchGroup, pool.tasks),
        "GroupState": st.builds(
            m.GroupState,
            pool.tasks,
            st.sampled_from(m.GROUP_STATES),
            many(st.tuples(amounts, pool.nodes | st.just(b"")), 3),
            texts,
        ),
        "Join": st.builds(
            m.Join,
            pool.tokens,
            pool.nodes,
            st.integers(0, NODE_NUMBER_MAX),
            texts,
            numbers,
            exactly(KEY_BYTES),
            texts,
            texts,
            amounts,
            labels,
            labels,
        ),
        "Joined": st.builds(m.Joined, pool.nodes, st.integers(1, NODE_NUMBER_MAX), st.floats(0.001, SECONDS_MAX)),
        "NodeTable": st.builds(m.NodeTable, numbers, many(members, 3), pool.nodes | st.just(b"")),
        "RenewLease": st.builds(m.RenewLease, pool.nodes, numbers),
        "Complain": st.builds(m.Complain, many(pool.nodes, 3)),
        "ProbePairs": st.builds(m.ProbePairs, numbers),
        "PairsProbed": st.builds(m.PairsProbed, numbers, many(pool.nodes, 3)),
        "Ping": st.builds(m.Ping, numbers),
        "Pong": st.builds(m.Pong, numbers),
        "LeaseRenewed": st.builds(m.LeaseRenewed, numbers),
        "Leave": st.builds(m.Leave, pool.nodes, texts),
        "Want": st.builds(m.Want, numbers, pool.objects, numbers, numbers, numbers),
        "Credit": st.builds(m.Credit, numbers, numbers),
        "StopWant": st.builds(m.StopWant, numbers, st.booleans()),
        "Chunk": st.builds(m.Chunk, numbers, numbers, numbers),
        "Queued": st.builds(m.Queued, numbers),
        "Redirect": st.builds(m.Redirect, numbers, pool.nodes),
        "Unavailable": st.builds(m.Unavailable, numbers, texts),
        # Of those that processes send, too:
        "Ready": st.just(m.Ready()),
        "Query": st.builds(m.Query, pool.tokens, texts, many(answers, 3)),
        "Answer": st.builds(m.Answer, pool.tokens, answers, texts),
        "Found": st.builds(m.Found, pool.tokens, many(answers, 3), st.booleans()),
        "Release": st.builds(m.Release, objects),
        "WatchReferences": st.builds(m.WatchReferences, objects, st.just(b"") | pool.nodes),
        "Unreferenced": st.builds(m.Unreferenced, objects),
        "Refused": st.builds(m.Refused, texts, texts),
        "Expelled": st.builds(m.Expelled, texts),
    }
