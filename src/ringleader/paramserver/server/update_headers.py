"""The facts about an update that its path and headers state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdateKey:
    """Identifies an update; repetitions of the same update have the same key."""

    version: int
    shard: int
    first_batch: int


@dataclass(frozen=True, slots=True)
class UpdateHeaders:
    """The key of an update, and what its worker states about it."""

    key: UpdateKey
    samples: int
    loss: float
    codec: str
    compute_s: float = 0.0
    """Seconds that it computed; 0: it did not say."""
