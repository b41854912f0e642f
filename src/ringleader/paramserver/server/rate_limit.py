"""How often somebody may ask: a bucket that fills steadily and empties by requests."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

MAX_KEYS = 4096
"""Strangers that are remembered. Who is forgotten has a full bucket again, which does
no harm: filling the memory with others costs more requests than it gains."""


@dataclass(slots=True)
class RateLimiter:
    """Buckets by key; time is an argument."""

    per_s: float
    burst: float
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def wait_s(self, key: str, now_s: float) -> int:
        """0 if it may go on, or else how many seconds it should wait."""
        left, then_s = self._left.pop(key, (self.burst, now_s))
        left = min(self.burst, left + (now_s - then_s) * self.per_s)
        may = left >= 1.0
        self._left[key] = (left - 1.0 if may else left, now_s)
        if len(self._left) > MAX_KEYS:
            self._left.popitem(last=False)
        return 0 if may else max(1, math.ceil((1.0 - left) / self.per_s))
