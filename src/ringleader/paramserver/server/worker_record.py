"""The server's record of each worker, and of the shard that it computes."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.paramserver.server.update_headers import UpdateKey


@dataclass(frozen=True, slots=True)
class ShardLease:
    """A shard of a version that was given to a worker, and when."""

    version: int
    shard: int
    shards: int
    first_batch: int
    issued_s: float

    @property
    def key(self) -> UpdateKey:
        """The key of the update that the worker is expected to send."""
        return UpdateKey(self.version, self.shard, self.first_batch)


@dataclass(slots=True)
class WorkerRecord:
    """The state of one worker."""

    name: str
    device: str
    slot: int
    """The lowest number that no other worker of the run has."""
    seen_s: float
    """Time of its last request."""
    has_asked: bool = False
    """It has asked for work since it joined, or since the server was restarted."""
    last: UpdateKey | None = None
    """Its last update that was counted."""
    updates: int = 0
    samples: int = 0
    samples_per_s: float = 0.0
    strikes: int = 0
    """Updates in a row that failed a check."""
    is_quarantined: bool = False
    has_left: bool = False

    @property
    def is_excluded(self) -> bool:
        """True if the worker may no longer take part."""
        return self.has_left or self.is_quarantined
