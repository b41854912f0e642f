"""Compares the norm of an update with the model and with the updates of others.

The bound of the model is absolute. The bound of the others is relative to the median
over workers of each worker's own median, which no single worker can move: whoever sends
many tiny or huge updates moves its own median only.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_RATIO = 1000.0
"""Largest ratio of the norm of an update to what is usual."""
MIN_WORKERS = 3
"""Workers whose norms must be known, so that one of them cannot decide."""
_KEPT = 16
"""Norms kept per worker."""


@dataclass(frozen=True, slots=True)
class NormRefusal:
    """Why an update is refused for its norm."""

    reason: str
    is_unusual: bool
    """It is far from what the other workers send, and not what all of them send."""


@dataclass(slots=True)
class UpdateNorms:
    """The norms of the latest updates of each worker, refused ones included."""

    _by_worker: dict[str, deque[float]] = field(default_factory=dict)

    def check(
        self, worker: str, norm: float, limit: float, present: Iterable[str]
    ) -> NormRefusal | None:
        """Note the norm of an update; return why it is refused, if it is.

        ``limit`` is the bound of the model; ``present`` are the workers to compare
        with.
        """
        usual = self._usual({worker, *present})
        own = self._by_worker.setdefault(worker, deque(maxlen=_KEPT))
        own.append(norm)
        if usual is not None and norm > MAX_RATIO * usual > 0:
            text = f"its norm {norm:.3g} is above {MAX_RATIO:g} times the usual"
            return NormRefusal(f"{text} {usual:.3g} of all workers", is_unusual=True)
        if norm > limit:
            text = f"its norm {norm:.3g} is above {limit:.3g}, and would move the"
            how = "weights too far; if it is right, restart the server with --max-move"
            return NormRefusal(f"{text} {how}", is_unusual=False)
        return None

    def forget(self, worker: str) -> None:
        """Forget a worker that no longer takes part."""
        self._by_worker.pop(worker, None)

    def _usual(self, present: set[str]) -> float | None:
        """Return the median over workers of each worker's median; None if too few."""
        medians = [
            statistics.median(norms)
            for worker, norms in self._by_worker.items()
            if worker in present
        ]
        return statistics.median(medians) if len(medians) >= MIN_WORKERS else None
