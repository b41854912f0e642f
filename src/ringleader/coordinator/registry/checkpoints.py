"""Rules of checkpoints: who takes part, who is done, when one is complete."""

from __future__ import annotations

from ringleader.coordinator.registry.events import EndCheckpoint, StartCheckpoint
from ringleader.coordinator.registry.job_state import JobState
from ringleader.coordinator.registry.limits import MAX_CHECKPOINTS
from ringleader.coordinator.registry.records import Checkpoint, Refusal, RefusalKind


def start_checkpoint(
    job: JobState | None, event: StartCheckpoint
) -> tuple[Checkpoint | Refusal, int | None]:
    """Return the checkpoint of a step, and the step of one that is forgotten for it.

    The workers that are registered at the first call take part. A later call for the
    same step and path returns the same checkpoint, so every rank may make it.
    """
    if job is None or event.worker_id not in job.leases:
        return _not_registered(event.worker_id), None
    known = job.checkpoints.get(event.step)
    if known is not None:
        if known.path == event.path:
            return known, None
        text = f"the checkpoint of step {event.step} is written to {known.path!r}"
        return Refusal(RefusalKind.CONFLICT, f"{text}, not {event.path!r}"), None
    forgotten = None
    if len(job.checkpoints) >= MAX_CHECKPOINTS:
        forgotten = next(iter(job.checkpoints))
        del job.checkpoints[forgotten]
    participants = {i: lease.worker.rank for i, lease in job.leases.items()}
    made = Checkpoint(event.step, event.path, participants, event.unix_s)
    job.checkpoints[event.step] = made
    return made, forgotten


def end_checkpoint(job: JobState | None, event: EndCheckpoint) -> Checkpoint | Refusal:
    """Note that one worker is done; a second call changes nothing."""
    known = job.checkpoints.get(event.step) if job is not None else None
    if known is None:
        text = f"there is no checkpoint of step {event.step}; start it first"
        return Refusal(RefusalKind.UNKNOWN, text)
    if event.worker_id not in known.participants:
        text = f"worker {event.worker_id} was not registered when the checkpoint of"
        text = f"{text} step {event.step} began, so it has no part in it"
        return Refusal(RefusalKind.CONFLICT, text)
    known.done.add(event.worker_id)
    if known.is_complete and not known.completed_at_s:
        known.completed_at_s = event.unix_s
    return known


def _not_registered(worker_id: str) -> Refusal:
    text = f"worker {worker_id} is not registered; call RegisterWorker first"
    return Refusal(RefusalKind.CONFLICT, text)
