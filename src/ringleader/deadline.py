"""Deadline bounds a whole operation, however many waits it contains."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, passed down to every wait of one operation."""

    at_s: float
    after_s: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the moment ``seconds`` from now; ``math.inf`` is not accepted
        anywhere."""
        return cls(time.monotonic() + seconds, seconds)

    def left_s(self) -> float:
        """Return the seconds that remain, never negative."""
        return max(0.0, self.at_s - time.monotonic())

    def is_over(self) -> bool:
        """Return whether the moment has passed."""
        return time.monotonic() >= self.at_s
