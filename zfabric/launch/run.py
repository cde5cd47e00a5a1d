"""``zfabric run``: one cluster on all machines of a job, for one program.

Rank 0 is the head: it starts its node, waits until all ranks have joined, and runs the program (``lead``). Every other rank joins
(``follow``). All end with the program. Rank 0 exits with the program's code, the others with 0. If rank 0 is killed, its node ends by its
lifeline, and all nodes with it.

SIGTERM is a notice to all ranks: the program receives it and has the grace period, and the others wait for its end. No node is drained,
because all of them end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from zfabric.adapters import processes
from zfabric.api.lifecycle import ADDRESS_VARIABLE
from zfabric.config import Config
from zfabric.exceptions import ConnectionLostError, FabricError, NodeDiedError, VersionMismatchError
from zfabric.launch.ranks import Rank
from zfabric.launch.rendezvous import LOOK_SECONDS, Meeting, own_host
from zfabric.protocol.effects import DRAINED
from zfabric.runtime.cluster import reach
from zfabric.runtime.connect import PRELOAD_SECONDS, REGISTER_SECONDS, attach, await_registered, node_resources
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.foreground import END_SECONDS, ChildWatch, plain
from zfabric.runtime.launch import Launched, launch
from zfabric.runtime.session import RUN, ClusterSettings
from zfabric.runtime.supervisor import ARENA_SHARE, COMMAND_ENDED, RESERVABLE_SHARE, arena_bytes

JOIN_SECONDS = 300.0
"""Default seconds for all ranks to join: interpreters that start on hundreds of machines at once wait for their file system."""
PATIENCE_SECONDS = 10.0
"""Seconds after which a rank prints what it waits for."""
WORKERS_SHARE = 0.95
"""Share of a job's memory that workers may use, as of a machine's."""
SIGNALLED = 128
"""Exit code of a program that a signal has ended, less the signal's number, as of shells."""
RANK_LABEL = "rank"
_LISTED_MAX = 10


class RunSettings(NamedTuple):
    """What a rank starts. Times are in seconds, ``arena_size`` is in bytes (-1: as configured)."""

    config: Config
    resources: dict[str, float]
    arena_size: int
    network: str
    """Where the nodes reach each other, such as "10.1.0.0/16"; "": on the default route."""
    port: int
    transfer_port: int
    wait: float
    grace: float
    say: Callable[[str], None]
    """Receives lines for people."""


def settings_of(
    rank: Rank,
    config: dict[str, object],
    num_cpus: int | None,
    num_gpus: int | None,
    resources: dict[str, float] | None,
    memory: int | None,
    object_store_memory: int | None,
) -> tuple[Config, dict[str, float], int]:
    """Return the limits, resources and arena's bytes of a rank's node: as given, else the run's on this machine."""
    settings = Config.of(config)
    cpus = min(processes.cpu_count(), rank.cpus or processes.cpu_count()) if num_cpus is None else num_cpus
    arena = -1 if object_store_memory is None else object_store_memory
    if rank.memory is not None and rank.memory < processes.memory_total():
        if arena < 0 and not settings.object_store_memory:
            arena = min(arena_bytes(settings), int(ARENA_SHARE * rank.memory))
        if memory is None:
            memory = int(RESERVABLE_SHARE * max(0, rank.memory - arena))
        settings = Config.of({"memory_limit": int(WORKERS_SHARE * rank.memory), **config})
    return settings, node_resources(cpus, num_gpus, resources, memory), arena


# --- rank 0 ----------------------------------------------------------------------------------------------------------------------


def run_alone(settings: RunSettings, command: Sequence[str]) -> int:
    """Run a program on a cluster of this machine. Return its exit code; 128 + n if signal n has ended it."""
    _check_program(command)
    launched = _start(settings, None)
    try:
        return _run(launched, settings, command)
    finally:
        launched.close()


def lead(rank: Rank, meeting: Meeting, settings: RunSettings, nodes_min: int, command: Sequence[str]) -> int:
    """Run a program on a cluster of all ranks, as their head. Return its exit code, as ``run_alone`` does.

    Raises FabricError if fewer than ``nodes_min`` ranks have joined in time, and what ``launch`` raises.
    """
    begun = time.monotonic()
    launched = None
    try:
        meeting.open()
        try:
            _check_program(command)
            host, port = meeting.head_endpoint(settings.network, settings.port)
            launched = _start(settings, _node(rank, settings, host, port, "", meeting.key_file))
            with closing(attach(launched.session, kind="tool")) as client:
                meeting.offer(launched.session)
                _await_ranks(client, rank, meeting, settings, nodes_min, begun)
        except Exception as error:  # The others wait. SIGTERM and Ctrl-C, which are none, end them as well.
            meeting.fail(str(error), rank.size)
            raise
        return _run(launched, settings, command)
    finally:
        if launched is not None:
            launched.close()
        meeting.close()


def _check_program(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise FabricError(f"there is no program {command[0]!r}")


def _await_ranks(client: DriverClient, rank: Rank, meeting: Meeting, settings: RunSettings, nodes_min: int, begun: float) -> None:
    """Wait until all ranks have joined, or at least ``nodes_min`` if some fail or time is over. Raises FabricError if fewer have.

    ``begun`` is when this rank began, on the monotonic clock.
    """
    remind_at = begun + PATIENCE_SECONDS
    while True:
        rows = client.query("nodes")
        joined = {row["labels"].get(RANK_LABEL) for row in rows}
        missing = {number for number in range(rank.size) if str(number) not in joined}
        failed = meeting.reports(missing)
        if rank.size - len(failed) < nodes_min:
            raise FabricError("\n".join(f"rank {number} cannot join: {reason}" for number, reason in sorted(failed.items())))
        now = time.monotonic()
        if missing == failed.keys() or now > begun + settings.wait:
            break
        if now > remind_at:
            settings.say(f"waiting for {_listed(missing)} of {rank.size}, at most {settings.wait:g} s")
            remind_at = begun + settings.wait
        time.sleep(LOOK_SECONDS)  # A tool polls: the daemon does not notify it.
    if rank.size - len(missing) < nodes_min:
        raise FabricError(f"{_listed(missing)} of {rank.size} did not join within {settings.wait:g} s")
    await_registered(client, [row["node"] for row in rows])
    cpus = sum(row["resources"].get("CPU", 0.0) for row in rows)
    without = f", without {_listed(missing)}" if missing else ""
    settings.say(f"{len(rows)} nodes with {cpus:g} CPUs joined in {now - begun:.1f} s{without}")


def _listed(ranks: set[int]) -> str:
    shown = sorted(ranks)[:_LISTED_MAX]
    more = f" and {len(ranks) - len(shown):,} more" if len(shown) < len(ranks) else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, shown))}{more}"


def _run(launched: Launched, settings: RunSettings, command: Sequence[str]) -> int:
    """Run a program to its end. SIGTERM is passed on, and after the grace period the program is killed.

    Ctrl-C is not passed on: a terminal sends it to the program as well.
    """
    launcher = os.getpid()
    watch = ChildWatch()
    try:
        program = subprocess.Popen(
            command,
            env={**os.environ, ADDRESS_VARIABLE: launched.session.directory},
            close_fds=False,  # The program has the files that this command has: `zfabric run -- cmp <(a) <(b)`.
            preexec_fn=lambda: processes.die_with_parent(launcher),
        )
    except OSError as error:
        raise FabricError(f"{command[0]!r} cannot be started: {error.strerror}") from None
    until = None
    while True:
        notice, code = watch.wait(program.pid, None if until is None else max(0.0, until - time.monotonic()))
        if code is not None:
            program.returncode = code  # It was collected here.
            return code if code >= 0 else SIGNALLED - code
        if notice is None:
            settings.say(f"the program is killed: it has not ended within {settings.grace:g} s")
            os.kill(program.pid, signal.SIGKILL)
            until = None
        elif notice == signal.SIGTERM and until is None:
            settings.say(f"SIGTERM: the program has {settings.grace:g} s to end")
            os.kill(program.pid, signal.SIGTERM)  # Popen.terminate would collect it if it has ended.
            until = time.monotonic() + settings.grace


# --- other ranks -------------------------------------------------------------------------------------------------------------------


def follow(rank: Rank, meeting: Meeting, settings: RunSettings) -> int:
    """Join the head of a run, and wait for the run's end. Return 0. Raises FabricError if that fails, or if the head was lost."""
    try:
        launched = _joined(rank, meeting, settings)
    except Exception as error:  # The head waits.
        meeting.report(rank.number, str(error))
        raise
    try:
        meeting.report(rank.number, "")  # Not before: a rank that was still joining would not learn why the head has failed.
        _await_end(launched, settings)
    finally:
        launched.close()
    return 0


def _joined(rank: Rank, meeting: Meeting, settings: RunSettings) -> Launched:
    """Find the head and join it, repeatedly if needed. Raises ConnectionLostError when the time is over."""
    begun = time.monotonic()
    shown = ""
    while True:
        reason = f"rank 0 has not arrived in {meeting}; is that the same directory on all machines?"
        offer = meeting.find(rank.number)
        try:
            if offer is not None:
                host = own_host(settings.network) if settings.network else ""
                reach(offer.address)
                return _start(settings, _node(rank, settings, host, settings.port, *offer))
        except VersionMismatchError:
            raise
        except ConnectionLostError as error:
            reason = str(error)
        now = time.monotonic()
        if now > begun + settings.wait:
            raise ConnectionLostError(f"{reason}\nThis rank has waited for {settings.wait:g} s (--wait).")
        if now > begun + PATIENCE_SECONDS and reason != shown:
            shown = reason
            settings.say(f"{reason}\nwaiting for it, at most {settings.wait:g} s")
        time.sleep(LOOK_SECONDS)


def _await_end(launched: Launched, settings: RunSettings) -> None:
    """Wait for the end of a node. At SIGTERM or SIGINT the node has the grace period; a second SIGINT ends it at once."""
    watch = ChildWatch()
    until = None
    while True:
        notice, code = watch.wait(launched.pid, None if until is None else max(0.0, until - time.monotonic()))
        if code is not None:
            reason = launched.failure() if code else ""
            if reason and not any(each in reason for each in (COMMAND_ENDED[RUN], DRAINED)):
                raise FabricError(f"the node has ended: {plain(reason)}")
            return
        if until is None and notice is not None:
            settings.say(f"{signal.Signals(notice).name}: waiting for the program's end, at most {settings.grace:g} s")
            until = time.monotonic() + settings.grace + END_SECONDS
        elif notice != signal.SIGTERM:
            return


# --- nodes -------------------------------------------------------------------------------------------------------------------------


def _node(rank: Rank, settings: RunSettings, host: str, port: int, address: str, key_file: str) -> ClusterSettings:
    labels = ((RANK_LABEL, str(rank.number)),)
    return ClusterSettings(rank.number == 0, host, port, address, key_file, "", labels, "", settings.transfer_port)


def _start(settings: RunSettings, cluster: ClusterSettings | None) -> Launched:
    """Start this rank's node and wait until it has joined. Raises ConnectionLostError if the node ends before."""
    launched = launch(kind=RUN, config=settings.config, resources=settings.resources, arena_size=settings.arena_size, cluster=cluster)
    try:
        seconds = PRELOAD_SECONDS if settings.config.preload else REGISTER_SECONDS
        attach(launched.session, kind="tool", failure=launched.failure, seconds=seconds).close()
    except VersionMismatchError:
        launched.close()
        raise
    except (ConnectionLostError, NodeDiedError) as error:
        reason = plain((launched.session.failure() or launched.failure() or str(error)).strip())
        launched.close()
        raise ConnectionLostError(reason) from None
    except BaseException:  # Ctrl-C too.
        launched.close()
        raise
    return launched
