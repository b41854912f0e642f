"""What everybody may see of a run: no token, code, PIN, address or path is in it."""

from __future__ import annotations

from typing import Any

from ringleader.paramserver.server.assignment import Worker
from ringleader.paramserver.server.scheduler import PRESENT_S
from ringleader.paramserver.server.training import Training

_MOST_POINTS = 400
"""Of the loss curve: more than a phone's screen has columns."""
_MOST_WORKERS = 100


def status_of(training: Training, task: str, now_s: float) -> dict[str, Any]:
    """The run as the status page shows it."""
    versions = training.versions
    seconds = training.seconds()
    per_s = versions.version / seconds if seconds else 0.0
    left = max(0, versions.plan.rounds - versions.version)
    workers = sorted(versions.workers.items(), key=lambda w: -w[1].seen_s)
    return {
        "task": task,
        "mode": versions.plan.mode,
        "steps": versions.plan.steps,
        "version": versions.version,
        "rounds": versions.plan.rounds,
        "finished": versions.is_finished,
        "shards": versions.shards,
        "counted": len(versions.counted),
        "waiting_for": max(0, versions.plan.workers - len(versions.present(now_s))),
        "seconds": round(seconds, 1),
        "eta_s": round(left / per_s, 1) if per_s and left else None,
        "losses": _thin(versions.losses),
        "workers": [
            {"id": identity, **_worker(training, identity, worker, now_s)}
            for identity, worker in workers[:_MOST_WORKERS]
        ],
        "bytes_received": sum(training.counts.received.values()),
        "bytes_sent": sum(training.counts.sent.values()),
    }


def _worker(
    training: Training, identity: str, worker: Worker, now_s: float
) -> dict[str, Any]:
    last = worker.last
    ago_s = now_s - worker.seen_s
    given = training.versions.given.get(identity)
    return {
        "name": worker.name,
        "device": worker.device,
        "state": _state(worker, ago_s, is_busy=given is not None),
        "seen_s": round(ago_s, 1),
        "updates": worker.updates,
        "samples_per_s": round(worker.samples_per_s, 1),
        "behind": training.versions.version - last.version - 1 if last else None,
        "bytes_received": training.counts.received.get(identity, 0),
        "bytes_sent": training.counts.sent.get(identity, 0),
    }


def _state(worker: Worker, ago_s: float, *, is_busy: bool) -> str:
    if worker.is_quarantined:
        return "quarantined"
    if worker.has_left:
        return "left"
    if is_busy:
        return "computing"
    return "waiting" if ago_s <= PRESENT_S else "gone"


def _thin(losses: list[tuple[int, float]]) -> list[tuple[int, float]]:
    every = -(-len(losses) // _MOST_POINTS) or 1
    thin = losses[::every]
    return thin if not losses or thin[-1] == losses[-1] else [*thin, losses[-1]]
