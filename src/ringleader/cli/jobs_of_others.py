"""Jobs that other machines started here, when the user of this one refuses them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerLost
from ringleader.jobs.client.channel import ResidentAgent, require_agent
from ringleader.jobs.client.job_requests import END_S, POLL_S, stop_everywhere
from ringleader.jobs.machine.job_folder import JobFolder, find_jobs, jobs_directory
from ringleader.jobs.protocol.job_record import JobRecord
from ringleader.jobs.protocol.job_spec import JobMachine
from ringleader.node.launch import resident_agent
from ringleader.node.protocol.snapshot import Snapshot


def refuse_jobs(home: Path) -> bool:
    """Let the agent that is up, if one is, refuse jobs from now on.

    Whatever else differs between that agent and this command: a refusal always works.
    """
    record = resident_agent.find_resident(home)
    agent = resident_agent.connect_to_resident(home, record) if record else None
    if agent is None:
        return False
    with agent:
        resident_agent.set_jobs_permission(agent, allowed=False)
    return True


def running_jobs_of_others(home: Path) -> list[JobRecord]:
    """Return the jobs of other machines that run here."""
    found = find_jobs(jobs_directory(home))
    return [each for each in found if each.owner and not each.state.is_over]


def describe_jobs_of_others(found: list[JobRecord], seen: Snapshot) -> list[str]:
    """Return lines about jobs that still run here; none if none does."""
    if not found:
        return []
    names = {row.node: row.name for row in seen.nodes}
    lines = ["Jobs of other machines still run here:"]
    for each in found:
        who = names.get(each.owner, each.owner[:8])
        lines.append(f"  {each.spec.id}  of {who}: {each.spec.title}")
    return [*lines, "To end them here: ringleader up --no-jobs --stop"]


def stop_jobs_of_others(home: Path) -> list[JobRecord]:
    """End the jobs of other machines on this one, and wait for that; return them.

    Raises ``DeadlineExceeded`` if one does not end in time.
    """
    return asyncio.run(_stop_all(require_agent(home), home))


async def _stop_all(agent: ResidentAgent, home: Path) -> list[JobRecord]:
    here = next(row for row in agent.snapshot.nodes if row.is_here)
    machine = JobMachine(agent.snapshot.node, here.name)  # type: ignore[arg-type]
    stopped = running_jobs_of_others(home)
    for each in stopped:
        job = each.spec.id
        for trouble in await stop_everywhere(
            agent.path, [machine], job, is_urgent=False
        ):
            raise PeerLost(machine.name, trouble)
    deadline = Deadline.after(END_S)
    for each in stopped:
        folder = JobFolder(jobs_directory(home) / each.spec.id)
        while not folder.read().state.is_over:
            if deadline.is_over():
                text = f"job {folder.id} has not ended within {END_S:g} s"
                text = f"{text}; try: ringleader stop --now {folder.id}"
                raise DeadlineExceeded(machine.name, text)
            await asyncio.sleep(POLL_S)
    return stopped
