"""``ringleader attach``: shows a job that runs, as if it was started here."""

from __future__ import annotations

import typer

from ringleader import settings
from ringleader.cli.terminal import AnyJob, exit_on_error

TAIL_BYTES = 4096
"""What is shown of each rank's earlier output."""


def attach(job: AnyJob = "") -> None:
    """Show the output of a job until it ends; Ctrl-C stops the job.

    Closing the terminal or killing this command does not stop it. To look
    only, use: ringleader logs --follow
    """
    import asyncio

    with exit_on_error("attach"):
        code = asyncio.run(_attach(job))
    raise typer.Exit(code)


async def _attach(name: str) -> int:
    from ringleader.cli.job_output import ShownJob
    from ringleader.jobs.client.channel import require_agent
    from ringleader.jobs.client.job_requests import find_job

    agent = require_agent(settings.home_directory())
    job = await find_job(agent, name)
    tail = 0 if job.state.is_over else TAIL_BYTES
    return await ShownJob(agent.path, job.spec, _all, tail_bytes=tail).run()


def _all(_rank: int) -> bool:
    return True
