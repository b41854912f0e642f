"""``ringleader down``: ends the agent that ``ringleader up`` started."""

from __future__ import annotations

import typer

from ringleader import settings
from ringleader.cli.terminal import exit_on_error


def down() -> None:
    """Leave the cluster: end the agent that 'ringleader up' started.

    Jobs that run through it on this machine lose their agent. The machine
    stays paired: 'ringleader up' brings it back.
    """
    with exit_on_error("down"):
        from ringleader.node.launch.resident_agent import stop_resident

        record = stop_resident(settings.home_directory())
    if record is None:
        typer.echo("No agent of 'ringleader up' runs here.")
    else:
        typer.echo(f"Down: process {record.pid} has left cluster {record.cluster}.")
