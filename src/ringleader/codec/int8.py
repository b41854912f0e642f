"""int8: per block of 2048 values a float32 scale, and a number of +-127 for each."""

from __future__ import annotations

import numpy as np

from ringleader.codec import blocks
from ringleader.codec.codec import Data, Values, leave

MOST = np.float32(127)
LEAST = np.float32(1e-30)
"""Blocks that are smaller than this throughout become zero."""


class Int8:
    """Rounds to the nearest, or up and down by chance so that the mean is right."""

    name = "int8"

    def __init__(self, chance: np.random.Generator | None = None) -> None:
        self._chance = chance
        self._scratch: Values = np.empty(0, np.float32)

    def num_bytes(self, count: int) -> int:
        """A scale per block and a byte per value."""
        return 4 * blocks.num_blocks(count) + count

    def encode(self, values: Values, data: Data, lost: Values | None = None) -> None:
        """Write the scales, then the numbers."""
        scales, rest = blocks.split(data, len(values))
        if len(self._scratch) < len(values):
            self._scratch = np.empty(len(values), np.float32)
        rounded = self._scratch[: len(values)]
        pairs = zip(blocks.rows_of(values), blocks.rows_of(rounded), strict=True)
        for (which, rows), (_, out) in pairs:
            self._round(rows, scales[which].reshape(-1, 1), out)
        np.copyto(rest.view(np.int8), rounded, casting="unsafe")
        if lost is not None:
            for which, rows in blocks.rows_of(rounded):
                np.multiply(rows, scales[which].reshape(-1, 1), rows)
            leave(values, rounded, lost, scales)

    def _round(self, rows: Values, scales: Values, out: Values) -> None:
        largest = np.maximum.reduce(np.abs(rows, out), axis=1, keepdims=True)
        np.multiply(largest, 1 / MOST, scales)
        np.maximum(largest, LEAST, out=largest)
        np.multiply(rows, np.divide(MOST, largest, largest), out)
        if self._chance is None:
            np.rint(out, out)
        else:
            out += self._chance.random(out.shape, np.float32)
            np.floor(out, out)
            np.clip(out, -MOST, MOST, out)
        if not np.isfinite(scales).all():
            broken = ~np.isfinite(scales[:, 0])
            scales[broken], out[broken] = np.inf, 0

    def decode(self, data: Data, values: Values) -> None:
        """Each number times the scale of its block."""
        scales, rest = blocks.split(data, len(values))
        column = blocks.check(scales)
        np.copyto(values, rest.view(np.int8))
        for which, rows in blocks.rows_of(values):
            np.multiply(rows, column[which], rows)
