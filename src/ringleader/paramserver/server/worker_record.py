"""The server's record of each worker, and of the shard it computes."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.paramserver.server.update_headers import UpdateKey


@dataclass(frozen=True, slots=True)
class ShardLease:
    """What a worker shall compute."""

    version: int
    shard: int
    shards: int
    first_batch: int
    issued_s: float


@dataclass(slots=True)
class WorkerRecord:
    """What is known about one worker."""

    name: str
    device: str
    slot: int
    seen_s: float
    last: UpdateKey | None = None
    updates: int = 0
    samples: int = 0
    samples_per_s: float = 0.0
    strikes: int = 0
    is_quarantined: bool = False
    has_left: bool = False

    @property
    def is_excluded(self) -> bool:
        """Whether it takes no part any more."""
        return self.has_left or self.is_quarantined
