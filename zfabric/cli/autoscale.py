"""``zfabric autoscale``: a cluster that gets nodes while tasks wait, and loses them when they are idle."""

from __future__ import annotations

import click

from zfabric.cli.options import address_option
from zfabric.cli.output import echo
from zfabric.cli.sessions import chosen_session
from zfabric.launch.autoscaler import Autoscaler
from zfabric.launch.cluster_file import read_scaling_file
from zfabric.runtime.foreground import Notified, notified


@click.command(short_help="Add nodes while tasks wait for room.")
@click.argument("file", type=click.Path())
@address_option
def autoscale(file: str, address: str | None) -> None:
    """Add nodes to a cluster while tasks wait for room: jobs of the [[kinds]] in FILE. Ends at Ctrl-C, SIGTERM, or with the cluster.

    Run it on a machine with a node of the cluster, such as the head. Nodes leave by themselves when they are idle, so if this command is
    killed, they leave all the same, and the next one finds their jobs. If it ends in order, it cancels the jobs that have not begun.
    `zfabric status` and `zfabric explain` show what is requested, or why nothing is.
    """
    scaling = read_scaling_file(file)
    autoscaler = Autoscaler(scaling, chosen_session(address), echo)
    try:
        with notified():
            autoscaler.run()
    except (Notified, KeyboardInterrupt):
        echo("ended; nodes leave once they are idle")
