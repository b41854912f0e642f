"""The server's record of each worker, and of the shard that it computes."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.rounds.round_length import WorkerTimes

MAX_STRIKES = 3
"""Invalid updates in a row that put a worker in quarantine."""


@dataclass(frozen=True, slots=True)
class ShardLease:
    """A shard of a version that was given to a worker, and when."""

    version: int
    shard: int
    shards: int
    first_batch: int
    issued_s: float
    steps: int = 1
    """Batches that were given, one for each step."""

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
    times: WorkerTimes | None = None
    """Moving averages over its rounds; None if it does not say how long it computes."""
    strikes: int = 0
    """Updates in a row that failed a check."""
    is_quarantined: bool = False
    has_left: bool = False
    source: str = ""
    """Where it joined from, since the server was started."""

    def begin(self, source: str, *, is_suspect: bool) -> None:
        """Note where a new worker comes from; of a suspect, one strike is enough."""
        self.source = source
        self.strikes = MAX_STRIKES - 1 if is_suspect else 0

    def note_counted(self, key: UpdateKey, samples: int) -> None:
        """Note that an update was counted."""
        self.last, self.strikes = key, 0
        self.updates += 1
        self.samples += samples

    def note_speed(
        self, samples: int, took_s: float, steps: int = 1, compute_s: float = 0.0
    ) -> None:
        """Note how long an update took, as moving averages.

        ``compute_s`` is how long its worker says that the steps took; 0: nothing.
        """
        speed = samples / took_s
        self.samples_per_s = 0.7 * (self.samples_per_s or speed) + 0.3 * speed
        if compute_s:
            new = WorkerTimes(compute_s / steps, max(0.0, took_s - compute_s))
            old = self.times or new
            mixed = (0.7 * a + 0.3 * b for a, b in zip(old, new, strict=True))
            self.times = WorkerTimes(*mixed)

    @property
    def is_excluded(self) -> bool:
        """True if the worker may no longer take part."""
        return self.has_left or self.is_quarantined
