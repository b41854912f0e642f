"""The mean of a round's differences, weighted by the tokens behind each of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ringleader.rounds.outer_step import Vector

Rule = Literal["all", "senders"]
"""all: divide by the tokens of all members. senders: divide each value by the tokens of
the members that sent it, which differs for sparse differences only."""

_Floats = NDArray[np.float64]


class RoundMean:
    """Sums the differences of a round in float64: their order does not matter."""

    def __init__(self, count: int, rule: Rule = "all") -> None:
        self._sum: _Floats = np.zeros(count, np.float64)
        self._senders: _Floats = np.zeros(count if rule == "senders" else 0, np.float64)
        self._rule = rule
        self._tokens = 0.0

    def add(self, difference: Vector, tokens: float) -> None:
        """Add the difference of a member that used ``tokens``."""
        self._sum += difference.astype(np.float64) * tokens
        self._tokens += tokens
        if self._rule == "senders":
            self._senders[difference != 0] += tokens

    def combine(self) -> Vector:
        """Return the mean of what was added; zeros if nothing was."""
        if self._rule == "senders":
            divisor: _Floats | float = np.where(self._senders > 0, self._senders, 1.0)
        else:
            divisor = self._tokens or 1.0
        mean: Vector = (self._sum / divisor).astype(np.float32)
        return mean
