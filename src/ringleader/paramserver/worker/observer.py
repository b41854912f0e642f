"""What a worker tells whoever watches it: a progress bar, a log, a test."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from ringleader.paramserver.worker.server_messages import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a worker stands after a stint."""

    version: int
    rounds: int
    loss: float
    counted: int
    """Updates that count."""
    dropped: int
    """Updates that came too late, or were refused."""
    samples: int
    sent_bytes: int
    received_bytes: int
    seconds: float
    left_s: float | None
    """Until the last round, at the pace so far; None while there is no telling."""


class Observer(Protocol):
    """Called by the worker's thread, or one that fetches for it; returns at once."""

    def joined(self, terms: Terms, device: str) -> None:
        """The server let us in; also after it forgot us."""
        ...

    def stepped(self, progress: Progress) -> None:
        """A stint is over, counted or not."""
        ...

    def waiting(self, reason: str, pause_s: float) -> None:
        """The server cannot be had; the next try comes after a pause."""
        ...

    def reconnected(self) -> None:
        """The server answers again."""
        ...

    def noted(self, text: str) -> None:
        """Something worth a line."""
        ...


@dataclass(slots=True)
class WorkTotals:
    """What a worker has done so far."""

    counted: int = 0
    dropped: int = 0
    samples: int = 0
    version: int = 0
    loss: float = float("nan")
    first_version: int | None = None
    began_s: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began_s

    def left_s(self, rounds: int) -> float | None:
        """How long the rest takes at the pace so far."""
        if self.first_version is None or self.version <= self.first_version:
            return None
        pace_s = self.seconds / (self.version - self.first_version)
        return pace_s * max(0, rounds - self.version)
