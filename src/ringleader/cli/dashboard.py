"""``ringleader dashboard``: opens the web page of the cluster."""

from __future__ import annotations

import json
import webbrowser
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import exit_on_error
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import HomeWriter
from ringleader.monitoring.messages import OpenDashboard
from ringleader.monitoring.open_dashboard import open_dashboard
from ringleader.node.protocol.agent_config import run_directory

_PAGE = "dashboard.html"


def dashboard(
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the link; do not open it.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port on 127.0.0.1; 0: any free one. Counts when the agent opens the "
            "page for the first time.",
        ),
    ] = 0,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON on standard output; implies --no-browser."
        ),
    ] = False,
) -> None:
    """Open a web page with the machines, links and jobs of the cluster.

    The agent of this machine serves it on 127.0.0.1, for you alone: the link holds a
    token that can be used for ten minutes. The page then works for twelve hours, as
    long as the agent runs.
    """
    home = settings.home_directory()
    with exit_on_error("dashboard"):
        opened = open_dashboard(home, OpenDashboard(port=port))
    if as_json:
        typer.echo(json.dumps({"url": opened.url, "valid_s": opened.valid_s}))
        return
    typer.echo(f"Dashboard: {opened.url}")
    typer.echo("The link is for you alone; it can be opened for 10 minutes.", err=True)
    if not no_browser:
        _open_browser(home, opened.url)


def _open_browser(home: Path, url: str) -> None:
    """Open the link by a private file: other users see the arguments of a browser."""
    folder = run_directory(home)
    text = escape(url, quote=True)
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={text}">'
    HomeWriter(folder).write(_PAGE, Secret(page.encode()))
    if not webbrowser.open((folder / _PAGE).as_uri()):
        typer.echo("No browser was found here; open the link in yours.", err=True)
