"""Limits how often something may happen, per key, by token buckets."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

MAX_KEYS = 4096
"""Keys that are remembered. An evicted key starts again with a full bucket. That is
safe: evicting a key costs an attacker more requests than the new bucket grants."""


@dataclass(slots=True)
class RateLimiter:
    """Token buckets by key. The caller passes the time."""

    per_s: float
    burst: float
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def wait_s(self, key: str, now_s: float, tokens: float = 1.0) -> int:
        """Take tokens; return 0, or the seconds until the bucket holds as many."""
        left, then_s = self._left.pop(key, (self.burst, now_s))
        left = min(self.burst, left + (now_s - then_s) * self.per_s)
        may = left >= tokens
        self._left[key] = (left - tokens if may else left, now_s)
        if len(self._left) > MAX_KEYS:
            self._left.popitem(last=False)
        return 0 if may else max(1, math.ceil((tokens - left) / self.per_s))
