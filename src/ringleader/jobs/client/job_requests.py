"""Requests about jobs to all machines of the cluster at once: list, find, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, PeerError
from ringleader.jobs.client.channel import Channel, ResidentAgent
from ringleader.jobs.client.job_summary import JobSummary, summarize
from ringleader.jobs.client.machine_choice import all_machines
from ringleader.jobs.protocol.job_record import JobRecord
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.jobs.protocol.messages import (
    Changed,
    JobList,
    JobReply,
    ListJobs,
    Prune,
    Pruned,
    Stop,
)

ASK_S = 15.0
PRUNE_S = 300.0
"""How long a machine may take to delete large folders."""
END_S = 60.0
"""How long a stopped job may take to end: its supervisor kills it after 30 s."""
POLL_S = 0.2


async def list_jobs(agent: ResidentAgent) -> tuple[list[JobSummary], list[str]]:
    """Return all jobs, the newest first, and which machines could not be asked."""
    machines = all_machines(agent.snapshot)
    replies = await asyncio.gather(
        *(jobs_of(agent.path, machine) for machine in machines), return_exceptions=True
    )
    records: dict[str, dict[str, JobRecord]] = {}
    troubles = []
    for machine, reply in zip(machines, replies, strict=True):
        if isinstance(reply, PeerError | ConfigError):
            troubles.append(f"{machine.name}: {reply}")
        elif isinstance(reply, BaseException):
            raise reply
        else:
            for record in reply:
                name = _name_in_job(machine, record)
                records.setdefault(record.spec.id, {})[name] = record
    found = [summarize(each) for each in records.values()]
    found.sort(key=lambda job: (job.state.is_over, -job.created_s))
    return found, troubles


async def jobs_of(path: Path, machine: JobMachine) -> list[JobRecord]:
    """Return the records of one machine; raises ``PeerError``."""
    reply = await _ask(path, machine, ListJobs())
    return reply.jobs if isinstance(reply, JobList) else []


def _name_in_job(machine: JobMachine, record: JobRecord) -> str:
    """Return the name under which the job knows a machine, now perhaps another."""
    found = (m.name for m in record.spec.machines if m.node == machine.node)
    return next(found, machine.name)


async def find_job(agent: ResidentAgent, name: str) -> JobSummary:
    """Return the job of an id, or of the beginning of one; empty: the newest."""
    jobs, troubles = await list_jobs(agent)
    found = [job for job in jobs if job.spec.id == name] or [
        job for job in jobs if job.spec.id.startswith(name)
    ]
    if not name and jobs:
        found = [max(jobs, key=lambda job: job.created_s)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(job.spec.id for job in found)
        raise ConfigError(f"{name} may be {ids}: give more of the name")
    missing = f"; could not ask {'; '.join(troubles)}" if troubles else ""
    raise ConfigError(
        f"there is no job {name!r}; list them with: ringleader jobs{missing}"
    )


async def wait_for_end(
    agent: ResidentAgent, spec: JobSpec, within_s: float = END_S
) -> None:
    """Wait until a job has ended on all machines that answer.

    Raises ``DeadlineExceeded`` if it has not in time.
    """
    deadline = Deadline.after(within_s)
    while True:
        jobs, _ = await list_jobs(agent)
        found = next((job for job in jobs if job.spec.id == spec.id), None)
        if found is None or found.state.is_over:
            return
        if deadline.is_over():
            where = [n for n, state in found.machines.items() if state == found.state]
            text = f"has not ended within {within_s:g} s; try: ringleader stop --now"
            raise DeadlineExceeded(", ".join(where), f"job {spec.id} {text}")
        await asyncio.sleep(POLL_S)


async def stop_everywhere(
    path: Path, machines: Sequence[JobMachine], job: str, *, is_urgent: bool
) -> list[str]:
    """Stop a job on all machines; return the machines that could not be told."""
    replies = await asyncio.gather(
        *(_ask(path, machine, Stop(job, is_urgent)) for machine in machines),
        return_exceptions=True,
    )
    troubles = []
    for machine, reply in zip(machines, replies, strict=True):
        if isinstance(reply, PeerError | ConfigError):
            troubles.append(f"{machine.name}: {reply}")
        elif isinstance(reply, BaseException):
            raise reply
        else:
            assert isinstance(reply, Changed)
    return troubles


async def prune_everywhere(
    agent: ResidentAgent, kept: int
) -> tuple[dict[str, Pruned], list[str]]:
    """Remove the ended jobs of all machines but for the newest of each.

    Returns what each machine has removed, by its name, and which could not be asked.
    """
    machines = all_machines(agent.snapshot)
    replies = await asyncio.gather(
        *(_ask(agent.path, each, Prune(kept), PRUNE_S) for each in machines),
        return_exceptions=True,
    )
    done, troubles = dict[str, Pruned](), []
    for machine, reply in zip(machines, replies, strict=True):
        if isinstance(reply, PeerError | ConfigError):
            troubles.append(f"{machine.name}: {reply}")
        elif isinstance(reply, BaseException):
            raise reply
        elif isinstance(reply, Pruned):
            done[machine.name] = reply
    return done, troubles


async def _ask(
    path: Path,
    machine: JobMachine,
    request: ListJobs | Stop | Prune,
    within_s: float = ASK_S,
) -> JobReply:
    channel = await Channel.open(path, machine)
    try:
        return await channel.ask(request, within_s)
    finally:
        channel.close()
