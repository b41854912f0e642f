"""``JobReports``: what this node tells the others about the end of its jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.node_state import MAX_FAILURES, JobEnded

MAX_ENDED = 16


@dataclass(slots=True)
class JobReports:
    """How jobs ended here and why workers failed: a part of our node state."""

    publish: Callable[[], None]
    """Publishes the changed node state in a new view."""
    ended_jobs: list[JobEnded] = field(default_factory=list)
    failures: list[JobFailure] = field(default_factory=list)

    def add_end(self, end: JobEnded) -> None:
        """Report that our workers have left a round, and whether they succeeded."""
        if end not in self.ended_jobs:
            self.ended_jobs = [*self.ended_jobs[-MAX_ENDED + 1 :], end]
            self.publish()

    def add_failure(self, failure: JobFailure) -> None:
        """Report why a worker has failed."""
        self.failures = [*self.failures[-MAX_FAILURES + 1 :], failure]
        self.publish()
