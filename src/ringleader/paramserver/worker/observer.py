"""The interface by which a worker reports its progress, and the totals it reports."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from ringleader.paramserver.protocol.messages import JoinAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a worker after an assignment."""

    version: int
    rounds: int
    loss: float
    counted: int
    """Updates that the server counted."""
    dropped: int
    """Updates that arrived too late, or were refused."""
    samples: int
    sent_bytes: int
    received_bytes: int
    seconds: float
    left_s: float | None
    """Seconds until the last round at the average speed so far; None if unknown."""


class Observer(Protocol):
    """Receives the events of a worker.

    The worker's thread and its prefetching threads call it, so it must return at once.
    """

    def joined(self, run: JoinAnswer, device: str) -> None:
        """The worker joined, for the first time or again."""
        ...

    def stepped(self, progress: Progress) -> None:
        """An assignment was computed and sent, whether it was counted or not."""
        ...

    def waiting(self, reason: str, pause_s: float) -> None:
        """The server cannot be reached; the next try comes after a pause."""
        ...

    def reconnected(self) -> None:
        """The server answers again."""
        ...

    def noted(self, text: str) -> None:
        """There is a notice for the user."""
        ...


@dataclass(slots=True)
class WorkTotals:
    """Totals of a worker since it joined."""

    counted: int = 0
    dropped: int = 0
    samples: int = 0
    version: int = 0
    loss: float = float("nan")
    first_version: int | None = None
    began_s: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the worker began."""
        return time.monotonic() - self.began_s

    def add_counted(self, samples: int, loss: float) -> None:
        """Add an update that the server counted."""
        self.counted += 1
        self.samples += samples
        self.loss = loss

    def advance(self, computed: int, newest: int) -> None:
        """Note the version that was computed on, and the server's newest one."""
        if self.first_version is None:
            self.first_version = computed
        self.version = max(self.version, newest)

    def left_s(self, rounds: int) -> float | None:
        """Estimate the seconds until ``rounds`` from the average speed so far."""
        if self.first_version is None or self.version <= self.first_version:
            return None
        round_s = self.seconds / (self.version - self.first_version)
        return round_s * max(0, rounds - self.version)

    def progress(self, rounds: int, sent_bytes: int, received_bytes: int) -> Progress:
        """Return the progress towards version ``rounds``."""
        return Progress(
            version=self.version,
            rounds=rounds,
            loss=self.loss,
            counted=self.counted,
            dropped=self.dropped,
            samples=self.samples,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            seconds=self.seconds,
            left_s=self.left_s(rounds),
        )
