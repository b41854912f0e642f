"""``JobClient``: a local process that takes part in jobs through an agent.

The parent of an agent is its only client, and the agent ends with it. A resident agent
has many: each owns the jobs that it has entered, and when its connection closes,
however the process ended, they are left.
"""

from __future__ import annotations

import time

from ringleader.errors import ConfigError
from ringleader.node.agent.jobs import Jobs
from ringleader.node.protocol.local_requests import (
    CheckRound,
    EnterJob,
    FinishRound,
    LeaveJob,
    ReportFailure,
    Request,
    RoundComplete,
    StoreOpened,
)


class JobClient:
    """One connection. Lives on the event loop of the agent."""

    def __init__(self, jobs: Jobs, *, is_parent: bool) -> None:
        self._jobs = jobs
        self.is_parent = is_parent
        self._started_s = time.monotonic()
        self._owned: set[str] = set()

    def claim(self, job: str) -> None:
        """Own ``job``; raises ``ConfigError`` if another process of this user does."""
        if self.is_parent or job in self._owned:
            return
        if job in self._jobs.owned:
            text = "another process on this machine takes part in it"
            raise ConfigError(f"job {job}: {text}; give --job another name")
        self._owned.add(job)
        self._jobs.owned.add(job)
        self._jobs.remember_start(job, self._started_s)

    def check(self, request: Request) -> None:
        """Raise ``ConfigError`` if ``request`` is about a job of another process."""
        if self.is_parent:
            return
        match request:
            case CheckRound(job=job) | FinishRound(job=job) | LeaveJob(job=job):
                self._check(job)
            case ReportFailure(failure=failure):
                self._check(failure.job)
            case StoreOpened(round=round_id) | RoundComplete(round=round_id):
                self._check(self._jobs.job_of_round(round_id))
            case EnterJob() | _:
                pass

    def _check(self, job: str) -> None:
        if job not in self._owned:
            raise ConfigError(f"job {job}: this process does not take part in it")

    def close(self) -> None:
        """Leave all jobs of this client."""
        for job in self._owned:
            self._jobs.abandon(job)
        self._owned.clear()
