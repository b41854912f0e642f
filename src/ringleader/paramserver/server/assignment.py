"""What workers are given, what they send, and what is known about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What becomes of an update."""

    TAKE = "take"
    AGAIN = "again"
    """It was counted before."""
    ELSEWHERE = "elsewhere"
    """Its shard was counted from another worker."""
    STALE = "stale"
    FINISHED = "finished"
    RUBBISH = "rubbish"
    """It failed a check."""
    WRONG = "wrong"
    """No such shard or batch was ever given out."""
    BARRED = "barred"
    """Its worker has left or was quarantined while it came."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker shall compute."""

    version: int
    shard: int
    shards: int
    first_batch: int
    given_s: float


@dataclass(frozen=True, slots=True)
class Key:
    """Which update this is; the same for all repetitions of it."""

    version: int
    shard: int
    first_batch: int


@dataclass(slots=True)
class Worker:
    """What is known about one worker."""

    name: str
    device: str
    slot: int
    seen_s: float
    last: Key | None = None
    updates: int = 0
    samples: int = 0
    samples_per_s: float = 0.0
    strikes: int = 0
    is_quarantined: bool = False
    has_left: bool = False

    @property
    def is_barred(self) -> bool:
        """Whether it takes no part any more."""
        return self.has_left or self.is_quarantined
