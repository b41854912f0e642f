"""``ringleader jobs``: lists the jobs of all machines."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ringleader import settings
from ringleader.cli.terminal import exit_on_error

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.jobs.client.job_summary import JobSummary

_COLOURS = {"running": "cyan", "failed": "red", "lost": "red", "succeeded": "green"}


def jobs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the jobs of all machines of the cluster, running ones first."""
    import asyncio

    from ringleader.jobs.client.channel import require_agent
    from ringleader.jobs.client.job_requests import list_jobs

    with exit_on_error("jobs"):
        agent = require_agent(settings.home_directory())
        found, troubles = asyncio.run(list_jobs(agent))
    if as_json:
        typer.echo(json.dumps([_plain(job) for job in found], indent=2))
        return
    for trouble in troubles:
        typer.echo(f"could not ask {trouble}", err=True)
    if not found:
        typer.echo("No jobs yet. Start one with: ringleader run train.py")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("job", "state", "started", "took", "machines", "command"):
        table.add_column(column, overflow="fold")
    for job in found:
        colour = _COLOURS.get(job.state, "")
        state = f"[{colour}]{job.state}[/]" if colour else str(job.state)
        table.add_row(
            job.spec.id,
            state,
            time.strftime("%b %d %H:%M", time.localtime(job.created_s)),
            _duration(job),
            _machines(job),
            _escape(job.spec.title),
        )
    Console(highlight=False).print(table)


def _machines(job: JobSummary) -> str:
    """Return the names; with their states where those differ."""
    texts = [
        name if state == job.state else f"{name} ({state})"
        for name, state in job.machines.items()
    ]
    return _escape(", ".join(texts))


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _duration(job: JobSummary) -> str:
    seconds = int((job.ended_s or time.time()) - job.created_s)
    if seconds < 60:
        return f"{max(0, seconds)} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def _plain(job: JobSummary) -> dict[str, Any]:
    return {
        "id": job.spec.id,
        "state": str(job.state),
        "command": job.spec.title,
        "started_on": job.spec.started_on,
        "created_s": job.created_s,
        "ended_s": job.ended_s,
        "exit_status": job.exit_status if job.state.is_over else None,
        "machines": {name: str(state) for name, state in job.machines.items()},
        "failure": job.failure,
    }
