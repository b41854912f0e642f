"""``ringleader stop``: ends a job on all machines."""

from __future__ import annotations

from typing import Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import exit_on_error
from ringleader.errors import PeerUnreachable


def stop(
    job: Annotated[str, typer.Argument(help="The job, or the beginning of its name.")],
    now: Annotated[
        bool, typer.Option("--now", help="Kill it instead of asking it to end.")
    ] = False,
) -> None:
    """End a job on all of its machines, from any machine of the cluster."""
    import asyncio

    with exit_on_error("stop"):
        asyncio.run(_stop(job, is_urgent=now))


async def _stop(name: str, *, is_urgent: bool) -> None:
    from ringleader.jobs.client.channel import require_agent
    from ringleader.jobs.client.job_requests import (
        find_job,
        stop_everywhere,
        wait_for_end,
    )

    agent = require_agent(settings.home_directory())
    job = await find_job(agent, name)
    if job.state.is_over:
        typer.echo(f"Job {job.spec.id} has ended already: {job.state}.")
        return
    machines = job.spec.machines
    troubles = await stop_everywhere(
        agent.path, machines, job.spec.id, is_urgent=is_urgent
    )
    await wait_for_end(agent, job.spec)
    if troubles:
        text = f"job {job.spec.id} may go on there; try again when it is back"
        raise PeerUnreachable("; ".join(troubles), text)
    typer.echo(f"Job {job.spec.id} has ended.")
