"""``summarize``: how a job stands, from what its machines say. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobSpec

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""
SILENT = "does not answer"


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job on all machines."""

    spec: JobSpec
    state: JobState
    created_s: float
    ended_s: float
    """0 while it runs."""
    exit_status: int
    """As of the command that runs the job."""
    machines: dict[str, str]
    """Name of each machine -> state of the job there."""
    cause: JobRecord | None = None
    """The record of the machine that failed first; None unless the job failed."""
    num_bytes: int = 0
    """What it takes on the disks of all machines, as far as it has ended."""
    written: dict[str, JobRecord] = field(default_factory=dict)
    """Name of each machine where the program wrote files -> its record."""

    @property
    def failure(self) -> str:
        """Why the job failed; empty if it did not."""
        if self.cause is None:
            return ""
        outcome = self.cause.outcome
        if outcome is not None and outcome.text:
            return outcome.text
        if self.cause.state == JobState.LOST:
            return f"the processes of {self.cause.machine} were killed, or it restarted"
        status = self.cause.exit_status
        return f"the launcher of {self.cause.machine} ended with exit status {status}"


def summarize(records: Mapping[str, JobRecord]) -> JobSummary:
    """Merge what machines say about one job; ``records`` are by the machine's name.

    That is the name in the job, which tells machines of equal names apart.
    Machines that say nothing are in none of them.
    """
    records = {n: msgspec.structs.replace(r, machine=n) for n, r in records.items()}
    first = next(iter(records.values()))
    spec = first.spec
    state = _state(records)
    failed = [r for r in records.values() if _is_failed(r)]
    cause = min(failed, key=_blame) if failed and state == JobState.FAILED else None
    if state == JobState.LOST:
        cause = next(r for r in records.values() if r.state == JobState.LOST)
    names = [machine.name for machine in spec.machines]
    return JobSummary(
        spec=spec,
        state=state,
        created_s=min(r.created_s for r in records.values()),
        ended_s=max(r.ended_s for r in records.values()) if state.is_over else 0.0,
        exit_status=_exit_status(state, cause),
        machines={n: records[n].state if n in records else SILENT for n in names},
        cause=cause,
        num_bytes=sum(r.num_bytes for r in records.values()),
        written={n: records[n] for n in names if n in records and records[n].written},
    )


def _state(records: Mapping[str, JobRecord]) -> JobState:
    found = {record.state for record in records.values()}
    order = (JobState.STOPPING, JobState.RUNNING, JobState.PREPARED)
    for state in order:
        if state in found:
            return state
    if any(_is_failed(r) and r.outcome and r.outcome.is_here for r in records.values()):
        return JobState.FAILED
    # A machine succeeds only after all machines of its round have: others were lost.
    for state in (JobState.SUCCEEDED, JobState.STOPPED, JobState.FAILED):
        if state in found:
            return state
    return JobState.LOST


def _is_failed(record: JobRecord) -> bool:
    return record.state == JobState.FAILED


def _blame(record: JobRecord) -> tuple[bool, bool, float]:
    """Sort key: a failure of the program there, the cause, the earliest, go first."""
    outcome = record.outcome
    if outcome is None:
        return True, False, record.ended_s
    return not outcome.is_here, outcome.is_consequence, record.ended_s


def _exit_status(state: JobState, cause: JobRecord | None) -> int:
    if state == JobState.STOPPED:
        return INTERRUPTED
    if cause is not None:
        return cause.exit_status if 0 < cause.exit_status < 256 else 1
    return 0
