"""``ringleader fetch``: brings home what a job has written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import AnyJob, exit_on_error
from ringleader.errors import ConfigError, PeerError

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.jobs.client.channel import ResidentAgent
    from ringleader.jobs.client.job_summary import JobSummary
    from ringleader.jobs.protocol.job_spec import JobMachine


def fetch(
    job: AnyJob = "",
    path: Annotated[
        list[str] | None,
        typer.Argument(
            help="A file or folder that the program wrote, from the folder in which it "
            "ran; else everything that it wrote."
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="NAME",
            help="The machine that wrote it (default: rank 0's for a PATH, else all).",
        ),
    ] = "",
    into: Annotated[
        Path | None,
        typer.Option(
            help="Folder for it (default: this one for a PATH, else JOB/MACHINE)."
        ),
    ] = None,
) -> None:
    """Bring files that a job wrote to this machine.

    Without PATH everything that the program wrote comes, and nothing that
    is here is replaced: it goes into a new folder with the job's name.
    """
    import asyncio

    with exit_on_error("fetch"):
        asyncio.run(_fetch(job, path or [], source, into))


async def _fetch(name: str, paths: list[str], source: str, into: Path | None) -> None:
    from ringleader.cli.run_options import check_fetch
    from ringleader.jobs.client.channel import require_agent
    from ringleader.jobs.client.job_requests import find_job
    from ringleader.jobs.client.machine_choice import find_machine

    check_fetch(paths)
    agent = require_agent(settings.home_directory())
    job = await find_job(agent, name)
    machines = job.spec.machines
    chosen = [find_machine(source, machines, "--from")] if source else list(machines)
    if paths:
        place = into or Path.cwd()
        for path in paths:
            await _bring(agent, job, chosen[0], path, place)
        return
    if job.state.is_over:
        wrote = [each for each in chosen if each.name in job.written]
        if not wrote:
            names = ", ".join(each.name for each in chosen)
            text = f"it wrote no file in its folder on {names}, or does not answer"
            raise ConfigError(f"job {job.spec.id}: {text}")
        chosen = wrote
    troubles = []
    for each in chosen:
        folder = re.sub(r"[^\w.-]+", "-", each.name).strip(".-") or each.node[:8]
        try:
            await _bring(agent, job, each, "", into or Path(job.spec.id) / folder)
        except PeerError as exc:  # what the others wrote comes all the same
            troubles.append(str(exc))
    if troubles:
        raise ConfigError("; ".join(troubles))


async def _bring(
    agent: ResidentAgent, job: JobSummary, machine: JobMachine, path: str, into: Path
) -> None:
    from ringleader.jobs.client.fetch_results import fetch_results
    from ringleader.jobs.protocol.messages import EVERYTHING

    names = await fetch_results(
        agent.path, machine, job.spec.id, name=path or EVERYTHING, into=into
    )
    number = "1 file" if len(names) == 1 else f"{len(names)} files"
    typer.echo(f"{number} of {machine.name} in {into / path if path else into}")
