"""The verdicts that the scheduler can give on an update."""

from __future__ import annotations

from enum import Enum, auto


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
