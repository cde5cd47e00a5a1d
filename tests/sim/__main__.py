"""``python -m tests.sim``: run one world per seed, print the seeds that fail, and list expected states that no seed reached."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from tests.sim.kinds import Kind, add_options
from tests.sim.network import Faults
from tests.sim.reproductions import PLACE, SHARE_LEAST, reduce
from tests.sim.shrinking import shrink
from tests.sim.transfers import TransferResult, transfer_world
from tests.sim.variants import VARIANTS, applied, kind_of, shows
from tests.sim.world import World, WorldResult, run_seed
from zfabric.protocol.ids import OBJECT_BYTES, TASK_BYTES

EXPECTED_STATES = (
    "Blocked",
    "Unblocked",
    "TakeBack",
    "TakenBack",
    "Cancel",
    "Interrupt",
    "Fetch",
    "Located",
    "RecallPins",
    "RecallGrant",
    "ReturnGrant",
    "RegisterAgain",
    "OfferResults",
    "RunningTasks",
    "Hold",
    "Release",
    "Unpin",
    "Farewell",
    "ProcessGone",
    "RetainOnly",
    "Pinned",
    "GrantsHeld",
    "late_completions",
    "take_backs",
    "memory_kills",
    "workers_died",
    "tasks_failed",
    "spills",
    "restores",
    "written_on_disk",
    "read_on_disk",
    "calm checked",
    "daemon restarted",
    "driver crashed",
    "worker died",
)
"""Messages and counters that at least one of many seeds must reach; otherwise the simulator no longer tests them."""
EXPECTED_OF_ACTORS = (
    "copied without a pin",
    "no copy without a pin",
    "HostedActors",
    "FindActors",
    "ActorLocations",
    "Call",
    "Returned",
    "CallOutcomes",
    "OutcomesRecorded",
    "ExpectResults",
    "KillActor",
    "ActorExiting",
    "StopCall",
    "RetireActor",
    "ActorEnded",
    "CallerGone",
    "CollectGarbage",
    "call made again",
    "LogAppended",
    "Checkpoint",
    "LogCommitted",
    "ReplayProgress",
    "OutcomesReceived",
    "CallCounts",
    "actor restored",
    "file lost",
    "value of a call made again",
    "disk full",
    "quiet checkpoint",
    "gate closed",
    "gate opened in vain",
    "calls lost",
    "outcome unknown",
    "outcome not run",
)
"""The same for programs with actors."""


EXPECTED_OF_DRAINS = ("node drained", "DrainActor", "ActorDrained", "copy entered", "copied reported", "LifeEnded", "RelayedCalls")
"""The same for programs with actors on nodes that are drained."""

EXPECTED_OF_GROUPED_ACTORS = ("PrepareBundles", "CommitBundles", "GroupState", "FreeBundles", "LifeEnded", "RelayedCalls", "RelayedYields")
"""The same for programs with actors in placement groups."""

EXPECTED_OF_CIRCLES = ("WaitDetails", "HostDelays", "circle refused", "circle warned", "circle broken", "worker died", "daemon restarted")
"""The same for programs whose actors wait for each other."""


EXPECTED_OF_NODES = (
    "Join",
    "Joined",
    "NodeTable",
    "RenewLease",
    "LeaseRenewed",
    "Place",
    "Placed",
    "Delegate",
    "Ended",
    "EndsReceived",
    "StopDelegated",
    "Reclaim",
    "Reclaimed",
    "returned",
    "UpdateLedger",
    "LedgerUpdated",
    "FetchValues",
    "FetchedValues",
    "ValueRead",
    "Pull",
    "Chunk",
    "copied",
    "StopPull",
    "agent killed",
    "agent stopped",
    "EndJob",
    "JobGone",
    "worker died",
    "Expelled",
    "node killed",
    "node stopped",
    "node silent",
    "workers frozen",
    "node joins late",
    "cut off",
    "cut both",
    "cut in",
    "cut out",
    "cut again and again",
    "clogged",
    "slow link",
    "lost_with_nodes",
    "connection ended",
    "daemon restarted",
    "RegisterNode",
    "attempts repeated",
    "ClaimValues",
    "values repeated",
    "void",
    "lost_with_daemons",
    "adopted",
    "searched",
)
"""The same for worlds of several nodes."""
EXPECTED_OF_RESTARTS = (
    "daemon restarted",
    "RegisterNode",
    "attempts repeated",
    "ClaimValues",
    "values repeated",
    "void",
    "adopted",
    "searched",
)
"""The same where nothing happens to nodes but that their daemons die."""
EXPECTED_ELSEWHERE = ("Delegate sent ahead", "Dispatch sent ahead", "Ended sent ahead", "Results sent ahead")
"""The same where the driver waits for one task on another node after the other."""
EXPECTED_OF_RELAYS = (
    "RelayedCalls", "RelayedReceipt", "StopRelayed", "CallsEnded", "KillActor", "CallerGone", "RetireActor", "ActorExiting", "LifeEnded",
    "RelayedBlock", "RelayedCheckpoint", "LogRecorded", "ReadLog", "LogPage", "RequestReceipt", "Receipt",
)  # fmt: skip
"""The same for actors in them."""

EXPECTED_OF_BARE = (
    "node joins late", "Place", "Placed", "Delegate", "Ended", "RelayedCalls", "CallsEnded", "LifeEnded", "daemon restarted",
    "RegisterNode", "node killed", "Notice",
)  # fmt: skip
"""The same where programs run on a node without CPUs."""

EXPECTED_OF_ELASTIC = (
    "node joins late", "node left", "Delegate", "Reclaim", "Reclaimed", "leaving entered", "copy entered", "copied reported",
    "daemon restarted",
)  # fmt: skip
"""The same where nodes join as there is work, and leave when they are idle."""

EXPECTED_OF_DETACHED = (
    "detached actor found", "detached actor found that nobody relied on", "driver crashed", "node killed", "daemon restarted",
    "living entered", "LifeEnded",
)  # fmt: skip
"""The same of programs with detached actors."""

MANY = 200
"""Seeds of any kind that together reach all that is expected."""
SHRUNK_MOST = 3
"""Failing seeds of one run that are shrunk. A fault that fails many worlds is found in the first."""


def run_seeds(seeds: Iterable[int], jobs: int, kind: Kind) -> Iterator[WorldResult]:
    """Run many worlds in ``jobs`` processes; with more than one, results come in any order."""
    run = partial(run_seed, kind=kind)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    import multiprocessing  # Only runs with several jobs need it.

    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=10)


def readable(value: object) -> str:
    """Return a short, readable form of a message's field."""
    if isinstance(value, bytes):
        if len(value) in (TASK_BYTES, OBJECT_BYTES):
            return value.hex()[8:12] + ".." + value.hex()[24:]
        return value.hex() if len(value) <= 9 else f"<{len(value)} bytes>"
    if isinstance(value, tuple):
        return f"{type(value).__name__ if hasattr(value, '_fields') else ''}({', '.join(map(readable, value))})"
    return repr(value)


def trace(seed: int, kind: Kind, **more: Any) -> int:
    """Print every message and event of one world. Return 1 if the world failed, else 0."""

    def show(now: float, source: str, to: str, message: object) -> None:
        line = f"{source} -> {to} {readable(message)}" if source or to else f"*** {message[0]}"  # type: ignore[index]
        print(f"{now - 100.0:10.4f} {line}"[:400])

    world = World(seed, kind, observer=show, **more)
    print(world.faults)
    outcome = world.run()
    print(outcome.failure or "all is well")
    return bool(outcome.failure)


def show_shrunk(seed: int, kind: Kind, traced: bool) -> int:
    """Print the smallest world found that fails like this one, with its trace if asked. Return 1, or 0 if the world does not fail."""
    try:
        found = shrink(seed, kind)
    except ValueError as error:
        print(error)
        return 0
    left = ", ".join(f"{name}={value}" for name, value in found.faults._asdict().items() if value != getattr(Faults(), name))
    print(f"    shrunk in {found.attempts} worlds to {len(found.program.statements)} statements and these faults: {left or 'none'}")
    for statement in found.program.statements:
        print(f"    {statement}"[:400])
    if traced:
        trace(seed, kind, reduced=(found.faults, found.program))
    return 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return its exit status: 1 if a world failed or an expected state was missed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use")
    add_options(parser)
    parser.add_argument(
        "--variant", choices=sorted(VARIANTS), metavar="NAME", help="break the machines in this way; seeds that fail are then a success"
    )
    parser.add_argument("--trace", type=int, metavar="SEED", help="show everything that happens in one world")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="find a smaller world that fails like this one, and show it")
    parser.add_argument("--reduce", type=int, metavar="SEED", help="store a reproduction of a world in which a variant is seen")
    parser.add_argument("--states", action="store_true", help="fail if no world reaches some state that this kind of worlds is to reach")
    parser.add_argument("--transfers", action="store_true", help="worlds of transfer agents, without programs")
    options = parser.parse_args(arguments)
    if options.transfers:
        return survey_transfers(range(options.start, options.start + options.seeds))
    kind = Kind.of(options) | kind_of(options.variant)
    if options.reduce is not None:
        return store_reproduction(options.variant, options.reduce, kind)
    with applied(options.variant):
        if options.trace is not None:
            return trace(options.trace, kind)
        if options.shrink is not None:
            return show_shrunk(options.shrink, kind, True)
        return survey(range(options.start, options.start + options.seeds), options.jobs, options.variant, kind, options.states)


def store_reproduction(variant: str, seed: int, kind: Kind) -> int:
    """Reduce a world in which a variant is seen, and store what is left. Return 1 if that shows the mistake in too few worlds."""
    found, share = reduce(variant, seed, kind)
    print(f"{variant}: {len(found.statements)} statements; {share:.0%} of its worlds fail")
    if share < SHARE_LEAST:
        return 1
    (PLACE / f"{variant}.txt").write_text(found.text())
    return 0


def survey_transfers(seeds: range) -> int:
    """Run these worlds of transfer agents. Return 1 if one fails."""
    failed = [outcome for outcome in map(run_transfers, seeds) if outcome.failure]
    for outcome in failed:
        print(f"seed {outcome.seed} fails: {outcome.failure[:500]}")
    print(f"{len(seeds)} seeds, {len(failed)} failed")
    return bool(failed)


def run_transfers(seed: int) -> TransferResult:
    """Run one world of transfer agents."""
    return transfer_world(seed).run()


def expected_of(kind: Kind) -> tuple[str, ...]:
    """States that many worlds of a kind must reach."""
    if kind.elsewhere:
        return EXPECTED_ELSEWHERE
    if kind.drains:
        return EXPECTED_OF_DRAINS
    if kind.groups and kind.actors:
        return EXPECTED_OF_GROUPED_ACTORS
    if kind.bare:
        return EXPECTED_OF_BARE
    if kind.elastic:
        return EXPECTED_OF_ELASTIC
    if kind.detached:
        return EXPECTED_OF_DETACHED
    if kind.nodes > 1:
        return EXPECTED_OF_RESTARTS if kind.restarts else EXPECTED_OF_RELAYS if kind.actors else EXPECTED_OF_NODES
    if kind.circles:
        return EXPECTED_OF_CIRCLES
    return EXPECTED_STATES + (EXPECTED_OF_ACTORS if kind.actors else ())


def survey(seeds: range, jobs: int, variant: str | None, kind: Kind, every_state: bool) -> int:
    """Run these seeds and print a summary. With a variant, stop at the first failure and return 0 if there is one.

    With ``every_state``, a state of ``expected_of`` that none of them reaches is a failure, as it is of ``MANY`` seeds.
    """
    began = time.perf_counter()
    failed = done = 0
    states: Counter[str] = Counter()
    for outcome in run_seeds(seeds, jobs, kind):
        done += 1
        states.update({name: 1 for name, count in outcome.states.items() if count > 0})
        if shows(variant, outcome.failure) if variant else outcome.failure:
            failed += 1
            print(f"seed {outcome.seed} fails: {outcome.failure[:500]}")
            more = [*kind.arguments(), *(("--variant", variant) if variant else ())]
            print(f"    python -m tests.sim {' '.join(('--trace', str(outcome.seed), *more))}")
            if variant:
                break
            if failed <= SHRUNK_MOST:
                show_shrunk(outcome.seed, kind, False)
        if done % 200 == 0:
            print(f"{done} seeds, {failed} failed, {done / (time.perf_counter() - began):.0f} seeds/s", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - began
    print(f"{done} seeds, {failed} failed, {done / seconds:.0f} seeds/s")
    if variant:
        print("caught" if failed else "NOT caught")
        return not failed
    missing = [name for name in expected_of(kind) if not states[name]] if every_state or len(seeds) >= MANY else []
    print(f"{len(states)} states reached" + (f"; never: {', '.join(missing)}" if missing else ""))
    return bool(failed or missing)


if __name__ == "__main__":
    sys.exit(main())
