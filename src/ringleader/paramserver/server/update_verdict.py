"""The verdicts that the scheduler can give on an update, and rules behind them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.paramserver.server.worker_record import ShardLease
from ringleader.rounds.round_length import MAX_AGE


class Verdict(Enum):
    """The server's decision on an update."""

    ACCEPT = auto()
    DUPLICATE = auto()
    """The same update was counted before."""
    ALREADY_COUNTED = auto()
    """Its shard was counted from another worker."""
    STALE = auto()
    FINISHED = auto()
    INVALID = auto()
    """It failed one of update_checks.py."""
    NOT_LEASED = auto()
    """These batches were not given to this worker, or were taken back."""
    EXCLUDED = auto()
    """Its worker has left, or was quarantined while the update arrived."""


def is_stale(plan: Plan, version: int, last: UpdateKey | None, key: UpdateKey) -> bool:
    """Return whether an update is of a round that is over, too old, or not new.

    ``version`` is the server's, ``last`` the worker's last update that was counted.
    """
    age = version - key.version
    if plan.is_bulk:
        return age > 0
    if plan.is_local:
        return age > MAX_AGE or (last is not None and key.version <= last.version)
    if plan.mode == "bounded" and age > plan.staleness:
        return True
    return last is not None and key.first_batch <= last.first_batch


def would_exceed_staleness(
    plan: Plan, version: int, leases: Iterable[ShardLease], now_s: float
) -> bool:
    """Return whether one more update could make one of ``leases`` too old.

    Only bounded mode has such a limit. A worker that has computed for longer than the
    round time-out is ignored.
    """
    if plan.mode != "bounded":
        return False
    under_way = [a for a in leases if now_s - a.issued_s < plan.round_timeout_s]
    oldest = min((a.version for a in under_way), default=version)
    return version + len(under_way) - oldest > plan.staleness


def is_leased(plan: Plan, lease: ShardLease | None, key: UpdateKey) -> bool:
    """Return whether the worker with ``lease`` was given the batches of an update.

    Outside rounds it may compute them on newer weights than it was told to.
    """
    if lease is None:
        return False
    if plan.is_bulk:
        return lease.key == key
    return (lease.shard, lease.first_batch) == (key.shard, key.first_batch)
