"""``ringleader dashboard``: opens the web page of the cluster."""

from __future__ import annotations

import json
import webbrowser
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import exit_on_error

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.monitoring.messages import DashboardOpened

_PAGE = "dashboard.html"


def dashboard(
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the link; do not open it.")
    ] = False,
    share: Annotated[
        bool,
        typer.Option(
            "--share",
            help="Open the page for phones on this network: they type the code that "
            "is shown. They can look, not stop jobs.",
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the page; 0: any free one. Counts when the agent opens the "
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
    from ringleader.monitoring.messages import OpenDashboard
    from ringleader.monitoring.open_dashboard import open_dashboard

    home = settings.home_directory()
    with exit_on_error("dashboard"):
        opened = open_dashboard(home, OpenDashboard(port=port, is_shared=share))
    if as_json:
        found = {"url": opened.url, "valid_s": opened.valid_s}
        if share:
            found |= {"code": opened.code, "fingerprint": opened.fingerprint}
        typer.echo(json.dumps(found))
        return
    if share:
        _show_code(opened)
        return
    typer.echo(f"Dashboard: {opened.url}")
    typer.echo("The link is for you alone; it can be opened for 10 minutes.", err=True)
    if not no_browser:
        _open_browser(home, opened.url)


def _show_code(opened: DashboardOpened) -> None:
    for url in opened.shared_urls:
        typer.echo(f"On the phone: {url}")
    code = f"{opened.code[:4]} {opened.code[4:]}"
    typer.echo(f"Code: {code}   (for {opened.valid_s / 60:.0f} minutes)")
    typer.echo(
        "The phone warns once, because it does not know this machine. Go on if the "
        "certificate it shows has this SHA-256 fingerprint:\n"
        f"{opened.fingerprint}"
    )


def _open_browser(home: Path, url: str) -> None:
    """Open the link by a private file: other users see the arguments of a browser."""
    from ringleader.identity.secret_value import Secret
    from ringleader.identity.storage.home import HomeWriter
    from ringleader.node.protocol.agent_config import run_directory

    folder = run_directory(home)
    text = escape(url, quote=True)
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={text}">'
    HomeWriter(folder).write(_PAGE, Secret(page.encode()))
    if not webbrowser.open((folder / _PAGE).as_uri()):
        typer.echo("No browser was found here; open the link in yours.", err=True)
