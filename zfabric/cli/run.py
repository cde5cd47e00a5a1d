"""``zfabric run``: one cluster on all machines of a job, for one program."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import click

from zfabric.cli.options import Seconds, WholeNumber, cluster_options
from zfabric.cli.output import echo
from zfabric.launch.ranks import RUN_ID, find_rank
from zfabric.launch.rendezvous import DEFAULT_BASE, FixedAddress, Meeting, SharedDirectory
from zfabric.launch.run import JOIN_SECONDS, SIGNALLED, RunSettings, follow, lead, run_alone, settings_of
from zfabric.runtime.cluster import parse_address
from zfabric.runtime.foreground import GRACE_SECONDS, Notified, notified
from zfabric.runtime.session import is_cluster_address


@click.command(context_settings={"allow_interspersed_args": False}, short_help="Run a program on a cluster of all machines of a job.")
@click.option(
    "--network",
    metavar="CIDR",
    default="",
    envvar="ZFABRIC_NETWORK",
    help="Where nodes reach each other, such as 10.1.0.0/16; by default at the address of the default route. [env: ZFABRIC_NETWORK]",
)
@click.option(
    "--rendezvous",
    metavar="DIR",
    default="",
    envvar="ZFABRIC_RENDEZVOUS",
    help=f"Where ranks find rank 0: a directory on a shared file system, by default {DEFAULT_BASE}, or tcp://HOST:PORT with --key-file. "
    "[env: ZFABRIC_RENDEZVOUS]",
)
@click.option(
    "--key-file", metavar="FILE", help="With --rendezvous tcp://HOST:PORT: keys of `zfabric keys create`, a copy on each machine."
)
@click.option("--port", type=WholeNumber("port", 0, 65535), default=0, metavar="N", help="Port for other nodes; by default any.")
@click.option("--transfer-port", type=WholeNumber("port", 0, 65535), default=0, metavar="N", help="Port for large values; by default any.")
@click.option(
    "--wait", type=Seconds(), default=JOIN_SECONDS, metavar="SECONDS", help=f"Wait so long for all ranks; by default {JOIN_SECONDS:g}."
)
@click.option(
    "--min-nodes", type=WholeNumber("number of nodes", 1), metavar="M", help="Go on with M nodes when the time is over; by default all."
)
@click.option(
    "--grace",
    type=Seconds(),
    default=GRACE_SECONDS,
    metavar="SECONDS",
    help=f"The program may go on for so long after SIGTERM; by default {GRACE_SECONDS:g}.",
)
@cluster_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def run(
    network: str,
    rendezvous: str,
    key_file: str | None,
    port: int,
    transfer_port: int,
    wait: float,
    min_nodes: int | None,
    grace: float,
    num_cpus: int | None,
    num_gpus: int | None,
    resources: dict[str, float] | None,
    memory: int | None,
    object_store_memory: int | None,
    config: dict[str, Any],
    command: tuple[str, ...],
) -> int:
    """Run COMMAND on a cluster of all machines of a job. `srun`, `mpirun` or the like start this command on each machine, once.

    Rank 0 is the head of the cluster. It waits for the other ranks and runs COMMAND, whose zf.init() joins. The cluster ends with COMMAND.
    Rank 0 exits as COMMAND does (128 plus the number of a signal), other ranks with 0. Without ranks, the cluster is this machine.
    """
    rank = find_rank(os.environ)
    if key_file is not None and not is_cluster_address(rendezvous):
        raise click.UsageError("--key-file: in a directory the ranks find a key of their run; add --rendezvous tcp://HOST:PORT")
    if min_nodes is not None and min_nodes > rank.size:
        raise click.UsageError(f"--min-nodes: there are {rank.size} ranks")
    limits = settings_of(rank, config, num_cpus, num_gpus, resources, memory, object_store_memory)

    def say(text: str) -> None:
        prefix = "zfabric: " if rank.number == 0 else f"zfabric, rank {rank.number}: "
        with suppress(OSError):  # Who read this may have ended; the run ends in order all the same.
            echo(prefix + text, err=True)

    settings = RunSettings(*limits, network, port, transfer_port, wait, grace, say)
    try:
        with notified():
            if rank.size == 1:
                return run_alone(settings, command)
            meeting = _meeting(rendezvous, key_file, rank.run)
            if rank.number == 0:
                return lead(rank, meeting, settings, min_nodes or rank.size, command)
            return follow(rank, meeting, settings)
    except Notified:
        say("SIGTERM: ended before the program has begun")
        return SIGNALLED + signal.SIGTERM


def _meeting(rendezvous: str, key_file: str | None, run_id: str) -> Meeting:
    if is_cluster_address(rendezvous):
        parse_address(rendezvous)
        if key_file is None:
            raise click.UsageError(
                "--rendezvous tcp://HOST:PORT needs --key-file: make one with `zfabric keys create FILE`, and copy FILE to each machine"
            )
        return FixedAddress(rendezvous, os.path.abspath(os.path.expanduser(key_file)))
    if not run_id:
        raise click.UsageError(f"nothing here names this run: set {RUN_ID} to a text that all its ranks have, and no other run")
    return SharedDirectory(rendezvous, run_id)
