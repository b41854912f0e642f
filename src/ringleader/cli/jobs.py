"""``ringleader jobs``: lists the jobs of all machines."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ringleader import settings
from ringleader.cli.terminal import (
    add_id,
    exit_on_error,
    is_interactive,
    print_tables,
    prompt,
)
from ringleader.errors import ConfigError

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.jobs.client.job_summary import JobSummary

_COLOURS = {"running": "cyan", "failed": "red", "lost": "red", "succeeded": "green"}


class Action(StrEnum):
    """What to do."""

    LIST = "list"
    PRUNE = "prune"


def jobs(
    action: Annotated[
        Action,
        typer.Argument(help="prune: remove ended jobs, with the files they wrote."),
    ] = Action.LIST,
    keep: Annotated[
        int, typer.Option(min=0, help="prune: how many of the newest stay.")
    ] = 0,
    yes: Annotated[bool, typer.Option("--yes", help="prune: do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the jobs of all machines of the cluster, running ones first."""
    if action is Action.PRUNE:
        with exit_on_error("jobs"):
            _prune(keep, yes=yes)
        return
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
    print_tables(jobs_table(found))


def jobs_table(found: Sequence[JobSummary]) -> Table:
    """Return the jobs as a table; an id and a name stay whole."""
    from ringleader.project.blob_store import size_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    add_id(table, "job", (job.spec.id for job in found))
    for column in ("state", "started", "took", "disk"):
        table.add_column(column, no_wrap=True)
    names = (name for job in found for name in job.machines)
    table.add_column("machines", min_width=max(map(len, names), default=0))
    table.add_column("command", overflow="fold")
    for job in found:
        colour = _COLOURS.get(job.state, "")
        state = f"[{colour}]{job.state}[/]" if colour else str(job.state)
        table.add_row(
            job.spec.id,
            state,
            time.strftime("%b %d %H:%M", time.localtime(job.created_s)),
            _duration(job),
            size_text(job.num_bytes) if job.num_bytes else "",
            _machines(job),
            _escape(job.spec.title),
        )
    return table


def _prune(keep: int, *, yes: bool) -> None:
    """Remove the ended jobs of all machines, once the user has agreed."""
    import asyncio

    from ringleader.jobs.client.channel import require_agent
    from ringleader.jobs.client.job_requests import list_jobs, prune_everywhere
    from ringleader.project.blob_store import size_text

    agent = require_agent(settings.home_directory())
    if not yes:
        found, _ = asyncio.run(list_jobs(agent))
        ended = [job for job in found if job.state.is_over]
        size = size_text(sum(job.num_bytes for job in ended))
        text = f"{len(ended)} jobs have ended, {size} on all machines together"
        if not is_interactive():
            raise ConfigError(
                f"{text}; nothing was removed: there is no terminal to ask; pass --yes"
            )
        question = f"{text}.\nRemove them with what they wrote"
        question += f", but for the newest {keep} of each machine" if keep else ""
        typed = prompt(f"{question}? [y/N] ", "nothing was removed").reveal()
        if typed.strip().lower() not in ("y", "yes"):
            raise ConfigError("nothing was removed")
    done, troubles = asyncio.run(prune_everywhere(agent, keep))
    for name, each in done.items():
        number = "1 job" if each.num_jobs == 1 else f"{each.num_jobs} jobs"
        typer.echo(f"{name}: {number} removed, {size_text(each.num_bytes)} freed")
    for trouble in troubles:
        typer.echo(f"could not ask {trouble}", err=True)
    if troubles:
        raise typer.Exit(1)


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
        "num_bytes": job.num_bytes,
        "written": {
            name: [
                {"name": w.name, "files": w.num_files, "bytes": w.num_bytes}
                for w in record.written
            ]
            for name, record in job.written.items()
        },
        "exit_status": job.exit_status if job.state.is_over else None,
        "machines": {name: str(state) for name, state in job.machines.items()},
        "failure": job.failure,
    }
