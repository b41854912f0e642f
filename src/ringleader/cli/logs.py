"""``ringleader logs``: shows what the ranks of a job have printed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import AnyJob, exit_on_error

GIVE_UP_S = 5.0
"""How long to ask machines that do not answer, when the logs are not followed."""


def logs(
    job: AnyJob = "",
    rank: Annotated[
        int | None, typer.Option(min=0, help="Show the output of this rank only.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
) -> None:
    """Show what the ranks of a job have printed, on all machines."""
    import asyncio

    with exit_on_error("logs"):
        code = asyncio.run(_show(job, rank, is_live=follow))
    raise typer.Exit(code)


async def _show(name: str, rank: int | None, *, is_live: bool) -> int:
    from ringleader.cli.job_output import make_view, write_output
    from ringleader.jobs.client.channel import require_agent
    from ringleader.jobs.client.follow_job import JobFollower
    from ringleader.jobs.client.job_requests import find_job

    agent = require_agent(settings.home_directory())
    job = await find_job(agent, name)
    follower = JobFollower(
        path=agent.path,
        spec=job.spec,
        view=make_view([machine.name for machine in job.spec.machines], rank),
        write=write_output,
        say=_say,
        shows=lambda each: rank in (None, each),
        is_live=is_live,
    )
    if not is_live:
        follower.give_up_s = GIVE_UP_S
    await follower.run()
    for trouble in follower.silent():
        _say(f"the output of a machine is missing: {trouble}")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"ringleader: {text}\n")
