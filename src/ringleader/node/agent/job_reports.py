"""``JobReports``: what this node tells the others about its jobs and their workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.node_state import MAX_FAILURES, JobEnded, RunWorker

MAX_ENDED = 16
MAX_WORKERS = 16


@dataclass(slots=True)
class JobReports:
    """How jobs ended here, why workers failed, and where they listen: a part of our
    node state."""

    publish: Callable[[], None]
    """Publishes the changed node state in a new view."""
    ended_jobs: list[JobEnded] = field(default_factory=list)
    failures: list[JobFailure] = field(default_factory=list)
    workers: list[RunWorker] = field(default_factory=list)

    def add_end(self, end: JobEnded) -> None:
        """Report that our workers have left a round, and whether they succeeded."""
        if end not in self.ended_jobs:
            self.ended_jobs = [*self.ended_jobs[-MAX_ENDED + 1 :], end]
            self.publish()

    def forget_failed_ends(self, job: str) -> None:
        """Drop the reports that our workers have failed in ``job``: it begins again."""
        kept = [end for end in self.ended_jobs if end.ok or end.job != job]
        self.ended_jobs = kept

    def add_failure(self, failure: JobFailure) -> None:
        """Report why a worker has failed."""
        self.failures = [*self.failures[-MAX_FAILURES + 1 :], failure]
        self.publish()

    def is_first_worker(self, job: str) -> bool:
        """Return whether ``job`` has had no worker here."""
        return all(worker.job != job for worker in self.workers)

    def add_worker(self, worker: RunWorker) -> None:
        """Report where a worker listens."""
        self.workers = [*self.workers[-MAX_WORKERS + 1 :], worker]
        self.publish()

    def end_worker(self, worker: RunWorker) -> None:
        """Attest that the process of a worker has ended."""
        ended = msgspec.structs.replace(worker, has_ended=True)
        self.workers = [ended if each == worker else each for each in self.workers]
        self.publish()

    def forget_workers(self, job: str) -> None:
        """Drop the workers of a job that this node has left."""
        self.workers = [worker for worker in self.workers if worker.job != job]
