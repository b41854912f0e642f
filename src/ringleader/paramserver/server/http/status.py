"""Builds the public status of a run, without any token, code, PIN, address or path."""

from __future__ import annotations

from ringleader.paramserver.protocol.messages import Status, WorkerState, WorkerStatus
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.server.worker_record import WorkerRecord
from ringleader.paramserver.server.worker_table import PRESENT_S

_MAX_POINTS = 400
"""Points of the loss curve: more than a phone's screen has columns."""
_MAX_WORKERS = 100


def build_status(training: Training, task: str, now_s: float) -> Status:
    """Build the message that the status page shows."""
    scheduler = training.scheduler
    seconds = training.seconds()
    per_s = scheduler.version / seconds if seconds else 0.0
    left = max(0, scheduler.plan.rounds - scheduler.version)
    workers = sorted(scheduler.workers.items(), key=lambda w: -w[1].seen_s)
    return Status(
        task=task,
        mode=scheduler.plan.mode,
        steps=scheduler.plan.steps,
        version=scheduler.version,
        rounds=scheduler.plan.rounds,
        finished=scheduler.is_finished,
        shards=scheduler.shards,
        counted=len(scheduler.counted),
        waiting_for=scheduler.missing(now_s),
        awaited=scheduler.awaited()[:_MAX_WORKERS],
        seconds=round(seconds, 1),
        eta_s=round(left / per_s, 1) if per_s and left else None,
        losses=_thin(scheduler.losses),
        workers=[
            _worker_status(training, identity, worker, now_s)
            for identity, worker in workers[:_MAX_WORKERS]
        ],
        bytes_received=sum(training.traffic.received.values()),
        bytes_sent=sum(training.traffic.sent.values()),
    )


def _worker_status(
    training: Training, identity: str, worker: WorkerRecord, now_s: float
) -> WorkerStatus:
    last = worker.last
    ago_s = max(0.0, now_s - worker.seen_s)
    lease = training.scheduler.leases.get(identity)
    return WorkerStatus(
        id=identity,
        name=worker.name,
        device=worker.device,
        state=_state(worker, ago_s, is_busy=lease is not None),
        seen_s=round(ago_s, 1),
        updates=worker.updates,
        samples_per_s=round(worker.samples_per_s, 1),
        behind=training.scheduler.version - last.version - 1 if last else None,
        bytes_received=training.traffic.received.get(identity, 0),
        bytes_sent=training.traffic.sent.get(identity, 0),
    )


def _state(worker: WorkerRecord, ago_s: float, *, is_busy: bool) -> WorkerState:
    if worker.is_quarantined:
        return "quarantined"
    if worker.has_left:
        return "left"
    if is_busy:
        return "computing"
    return "waiting" if ago_s <= PRESENT_S else "gone"


def _thin(losses: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Keep every n-th point and the last one."""
    every = -(-len(losses) // _MAX_POINTS) or 1
    thin = losses[::every]
    return thin if not losses or thin[-1] == losses[-1] else [*thin, losses[-1]]
