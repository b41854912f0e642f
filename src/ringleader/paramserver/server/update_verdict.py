"""The decisions that the server can make about an update."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What becomes of an update."""

    ACCEPT = "take"
    DUPLICATE = "again"
    """It was counted before."""
    ALREADY_COUNTED = "elsewhere"
    """Its shard was counted from another worker."""
    STALE = "stale"
    FINISHED = "finished"
    INVALID = "rubbish"
    """It failed a check."""
    UNKNOWN_SHARD = "wrong"
    """No such shard or batch was ever given out."""
    EXCLUDED = "barred"
    """Its worker has left or was quarantined while it came."""
