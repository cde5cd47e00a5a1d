"""``zfabric page``: the cluster in a browser."""

from __future__ import annotations

import importlib.util

import click

from zfabric.cli.options import WholeNumber, address_option
from zfabric.cli.output import echo
from zfabric.cli.sessions import chosen_session


@click.command(short_help="Show the cluster in a browser.")
@address_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to listen; beyond this machine needs --certificate."
)
@click.option(
    "--port", type=WholeNumber("port", 0, 65535), default=8265, show_default=True, metavar="PORT", help="The port; 0 takes a free one."
)
@click.option("--certificate", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="A certificate (PEM), to serve by https.")
@click.option(
    "--key", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="The certificate's key, if it is not in its file."
)
@click.option("--allow-changes", is_flag=True, help="Show buttons that cancel tasks and kill actors; whoever has the address may use them.")
def page(address: str | None, host: str, port: int, certificate: str | None, key: str | None, allow_changes: bool) -> None:
    """Serve a page that shows the cluster, until Ctrl-C or the cluster's end.

    It prints the address to open, which has a token: whoever has it sees what the programs of this cluster print. Needs the extra "page":
    pip install 'zfabric[page]'.
    """
    if key is not None and certificate is None:
        raise click.UsageError("--key needs --certificate")
    for module in ("starlette", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            raise click.ClickException(f"the page needs {module}, which is not installed: pip install 'zfabric[page]'")
    from zfabric.page.serving import serve

    serve(chosen_session(address), host, port, certificate, key, echo, allow_changes)
