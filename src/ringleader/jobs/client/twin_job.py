"""The same command, typed on several machines whose agents are up: one job is wanted.

Typed on one machine a command runs on all of them, so typed on two it would run twice
everywhere. The second one finds the job of the first among the jobs of its own machine
and shows that. If both are typed at the same moment, the machine that both jobs know by
the smallest id decides: the job that it prepared first starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ringleader.jobs.protocol.job_record import JobRecord
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec

MOMENT_S = 120.0
"""Walking to the next machine takes a minute. Who starts the same command from another
machine later means another job."""


def find_twin(
    jobs: Iterable[JobRecord], spec: JobSpec, script: Path, now_s: float
) -> JobRecord | None:
    """Return a job of this machine that ``spec`` would run once more.

    It was started a moment ago from another machine, with the same words and the same
    ``script``. ``now_s`` is the time of this machine, as in its records.
    """
    for record in jobs:
        other = record.spec
        if (
            other.id != spec.id
            and not record.state.is_over
            and record.owner
            and now_s - record.created_s < MOMENT_S
            and _words(other) == _words(spec)
            and (spec.is_module or _is_same(Path(record.work, other.script), script))
        ):
            return record
    return None


def starter(record: JobRecord) -> str:
    """Return the name of the machine where a job was started, as the job tells it."""
    found = (m.name for m in record.spec.machines if m.node == record.owner)
    return next(found, record.spec.started_on)


def _words(spec: JobSpec) -> tuple[object, ...]:
    return spec.script, spec.is_module, spec.args, spec.options


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def arbiter(one: JobSpec, other: JobSpec) -> JobMachine | None:
    """Return the machine that decides which of two jobs came first."""
    nodes = {machine.node for machine in other.machines}
    common = [machine for machine in one.machines if machine.node in nodes]
    return min(common, key=lambda machine: machine.node, default=None)


def comes_first(job: str, other: str, records: Sequence[JobRecord]) -> bool:
    """Return whether ``job`` was prepared before ``other``, by the arbiter's records.

    A job that is not there yet comes later: its command will find the other.
    """
    times = {each.spec.id: (each.created_s, each.spec.id) for each in records}
    return other not in times or (job in times and times[job] < times[other])
