"""``zfabric metrics``: the cluster's metrics for Prometheus, without the page."""

from __future__ import annotations

import importlib.util
import time

import click

from zfabric.cli.options import WholeNumber, address_option
from zfabric.cli.output import echo
from zfabric.cli.sessions import chosen_session, connected

LOOK_EVERY = 1.0
"""Seconds between checks of the cluster."""


@click.command(short_help="Serve metrics of the cluster to Prometheus.")
@address_option
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to listen.")
@click.option(
    "--port", type=WholeNumber("port", 0, 65535), default=9465, show_default=True, metavar="PORT", help="The port; 0 takes a free one."
)
@click.option("--once", is_flag=True, help="Print them once, and serve nothing.")
def metrics(address: str | None, host: str, port: int, once: bool) -> None:
    """Serve the metrics of this node at /metrics, until Ctrl-C or the cluster's end: counts, rates, times, and the program's own.

    They name functions and actors, and have no values of programs. Needs the extra "metrics": pip install 'zfabric[metrics]'.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise click.ClickException("this needs prometheus_client, which is not installed: pip install 'zfabric[metrics]'")
    from zfabric.page.metrics import exposition, serve
    from zfabric.page.views import Views

    session = chosen_session(address)
    with connected(session) as client:
        views = Views(session, client)
        if once:
            echo(exposition(views).decode(), nl=False)
            return
        try:
            server, bound = serve(views, host, port)
        except OSError as error:
            raise click.ClickException(f"cannot listen at {host}:{port}: {error.strerror}; --port 0 takes a free port") from None
        echo(f"http://{host}:{bound}/metrics")
        try:
            while session.alive():
                time.sleep(LOOK_EVERY)  # Until Ctrl-C or the cluster's end.
        finally:
            server.shutdown()
