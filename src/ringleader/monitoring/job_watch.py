"""``JobWatch``: the jobs of all machines, their logs and the stop button.

It asks as ``ringleader jobs`` does, through the socket of its own agent, so that there
is one way to find and stop jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ringleader.dashboard.http_message import BadRequest
from ringleader.dashboard.job_rows import JobNumbers, number_curves, rank_rows
from ringleader.errors import RingleaderError
from ringleader.jobs.client.channel import Channel, ResidentAgent
from ringleader.jobs.client.job_requests import list_jobs, stop_everywhere
from ringleader.jobs.client.job_summary import JobSummary
from ringleader.jobs.protocol.job_spec import JobMachine
from ringleader.jobs.protocol.messages import Changed, Follow, Output
from ringleader.node.agent.agent_core import AgentCore

LIST_S = 20.0
LOG_S = 8.0
TAIL_BYTES = 16 << 10
MAX_ENDED = 6
"""Jobs that are over and still shown."""


class JobWatch:
    """Jobs of the cluster, as a resident agent can see them."""

    def __init__(self, core: AgentCore) -> None:
        self._core = core
        self.summaries: list[JobSummary] = []
        """As of the last ``refresh``; the newest first."""

    async def refresh(self) -> None:
        """Ask all machines for their jobs; keeps the old list if that fails."""
        if not self._core.config.is_resident:
            return
        try:
            async with asyncio.timeout(LIST_S):
                found, _ = await list_jobs(self._agent())
        except (RingleaderError, TimeoutError, OSError):
            return
        ended = [job for job in found if job.state.is_over][:MAX_ENDED]
        self.summaries = [job for job in found if not job.state.is_over] + ended

    async def log_tail(self, job: str, rank: int) -> str:
        """Return the last lines of a rank; raises ``BadRequest``."""
        machines = self._find(job).spec.machines
        replies = await asyncio.gather(
            *(self._tail(each, job, rank) for each in machines)
        )
        text = b"".join(replies).decode(errors="replace")
        return text or f"rank {rank} has printed nothing, or its machine is not here"

    async def stop_job(self, job: str) -> str:
        """Stop a job on all machines and return a sentence about it."""
        machines = self._find(job).spec.machines
        path = self._core.identity.status_socket
        troubles = await stop_everywhere(path, machines, job, is_urgent=False)
        if troubles:
            return f"job {job} stops, but could not tell {'; '.join(troubles)}"
        return f"job {job} stops on all machines"

    def _find(self, job: str) -> JobSummary:
        found = [each for each in self.summaries if each.spec.id == job]
        if not found:
            text = f"there is no job {job[:64]!r} that was started from one machine"
            raise BadRequest(404, f"{text}; look at it where it was started")
        return found[0]

    def _agent(self) -> ResidentAgent:
        return ResidentAgent(self._core.identity.status_socket, self._core.snapshot())

    async def _tail(self, machine: JobMachine, job: str, rank: int) -> bytes:
        """Return what a machine has of the end of a rank's log; empty: nothing."""
        try:
            async with asyncio.timeout(LOG_S):
                channel = await Channel.open(self._core.identity.status_socket, machine)
                try:
                    return await _read_tail(channel, job, f"rank-{rank}")
                finally:
                    channel.close()
        except (RingleaderError, TimeoutError, OSError):
            return b""  # this machine is not here; others may have the log


async def _read_tail(channel: Channel, job: str, log: str) -> bytes:
    await channel.send(Follow(job=job, is_live=False, tail_bytes=TAIL_BYTES))
    found = b""
    while True:
        match await channel.receive(LOG_S):
            case Output(log=name, data=data) if name == log:
                found = (found + data)[-TAIL_BYTES:]
            case Changed():
                return found


def summary_rows(
    summaries: Sequence[JobSummary],
    numbers: Mapping[str, JobNumbers],
    names: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return a row of the page for each job that was started from one machine."""
    return [
        {
            "id": job.spec.id,
            "name": f"{job.spec.title} ({job.spec.id})",
            "state": str(job.state),
            "about": _about(job),
            "failure": job.failure,
            "started_s": round(job.created_s, 1),
            "ended_s": round(job.ended_s, 1),
            "numbers": number_curves(numbers.get(job.spec.id, JobNumbers())),
            "ranks": rank_rows(numbers.get(job.spec.id, JobNumbers()), names),
            "can_stop": not job.state.is_over,
            "has_log": True,
        }
        for job in summaries
    ]


def _about(job: JobSummary) -> str:
    states = set(job.machines.values())
    if states == {str(job.state)}:
        return f"on {', '.join(job.machines)}"
    return ", ".join(f"{name}: {state}" for name, state in job.machines.items())
