"""``ringleader metrics``: numbers of this machine's agent and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringleader import settings
from ringleader.cli.interrupt import exit_on_sigterm
from ringleader.cli.terminal import exit_on_error


def metrics(
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve them at http://HOST:PORT/metrics for Prometheus until Ctrl-C; "
            "0: any free port.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address to serve on; 0.0.0.0 lets the network read them."),
    ] = "127.0.0.1",
) -> None:
    """Show the metrics of this machine's agent and workers, as Prometheus reads them.

    Every metric is explained in docs/metrics.md. Exits with 3 if nothing
    of Ringleader runs here.
    """
    from ringleader.metrics.exposition import write_page
    from ringleader.node.peering.metrics_query import query_metrics

    home = settings.home_directory()
    with exit_on_error("metrics"), exit_on_sigterm():
        if port is None:
            found = query_metrics(home)
            if not found:
                text = "ringleader metrics: no agent and no worker runs here; start one"
                typer.echo(f"{text} with 'ringleader up' or 'ringleader run'", err=True)
                raise typer.Exit(3)
            typer.echo(write_page(found), nl=False)
        else:
            _serve(home, host, port)


def _serve(home: Path, host: str, port: int) -> None:
    import asyncio

    from ringleader.log_limit import limited_logs
    from ringleader.metrics.exposition import write_page
    from ringleader.metrics.page_server import PATH, PageServer
    from ringleader.node.peering.metrics_query import query_metrics
    from ringleader.transport.listening_socket import listen

    sock = listen(host, port)
    shown = f"[{host}]" if ":" in host else host

    def show(bound: int) -> None:
        typer.echo(f"http://{shown}:{bound}{PATH}  (Ctrl-C ends)", err=True)

    server = PageServer(lambda: write_page(query_metrics(home)))
    with sock, limited_logs():
        asyncio.run(server.serve(sock, show))
