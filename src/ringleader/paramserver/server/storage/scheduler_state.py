"""Converts the state of the scheduler to JSON for checkpoints, and back."""

from __future__ import annotations

import re
from typing import Any

from ringleader.errors import ConfigError
from ringleader.paramserver.server.scheduler import Scheduler
from ringleader.paramserver.server.update_headers import UpdateKey

_IDENTITY = re.compile(r"w[1-9][0-9]{0,8}")


def dump(scheduler: Scheduler) -> dict[str, Any]:
    """Return what must survive a restart."""
    return {
        "version": scheduler.version,
        "shards": scheduler.shards,
        "position": scheduler.position,
        "losses": scheduler.losses,
        "mode": scheduler.plan.mode,
        "steps": scheduler.plan.steps,
        "workers": {
            identity: {
                "name": worker.name,
                "device": worker.device,
                "last": worker.last and key_to_json(worker.last),
                "updates": worker.updates,
                "samples": worker.samples,
                "left": worker.has_left,
                "quarantined": worker.is_quarantined,
            }
            for identity, worker in scheduler.workers.items()
        },
        "leases": {w: key_to_json(a.key) for w, a in scheduler.leases.items()},
        "lease_steps": {w: a.steps for w, a in scheduler.leases.items()},
        "returned": scheduler.returned,
    }


def restore(scheduler: Scheduler, state: dict[str, Any], now_s: float) -> None:
    """Set a new scheduler to the state that ``dump`` returned."""
    plan = scheduler.plan
    for name, now in (("mode", plan.mode), ("steps", plan.steps)):
        if state[name] != now:
            text = f"the checkpoint was written with {name} {state[name]}, not {now}"
            raise ConfigError(f"{text}; use the same, or choose another --out")
    scheduler.version = int(state["version"])
    scheduler.shards = int(state["shards"])
    scheduler.position = int(state["position"])
    scheduler.losses = [(int(v), float(loss)) for v, loss in state["losses"]]
    for identity, kept in state["workers"].items():
        restore_worker(scheduler, identity, kept, now_s)
        worker = scheduler.workers[identity]
        worker.last = kept["last"] and key_from_json(kept["last"])
        worker.updates, worker.samples = int(kept["updates"]), int(kept["samples"])
        worker.has_left = bool(kept["left"])
        worker.is_quarantined = bool(kept["quarantined"])
    scheduler.returned = [(int(b), int(n)) for b, n in state.get("returned", [])]
    steps = state.get("lease_steps", {})
    for identity, key in state.get("leases", {}).items():
        given = int(steps.get(identity, plan.steps))
        scheduler.restore_lease(identity, key_from_json(key), given, now_s)


def restore_worker(
    scheduler: Scheduler, identity: str, kept: dict[str, Any], now_s: float
) -> None:
    """Add a worker that a checkpoint or a journal names."""
    if not _IDENTITY.fullmatch(identity):
        raise ConfigError(
            f"{identity!r} is not the id of a worker: the checkpoint is damaged"
        )
    scheduler.workers.add(identity, str(kept["name"]), str(kept["device"]), now_s)


def key_to_json(key: UpdateKey) -> list[int]:
    """Convert a key to a list of three numbers."""
    return [key.version, key.shard, key.first_batch]


def key_from_json(numbers: list[int]) -> UpdateKey:
    """Convert what ``key_to_json`` returned to a key."""
    version, shard, first_batch = numbers
    return UpdateKey(int(version), int(shard), int(first_batch))
