"""int8: a float32 scale per block of 2048 values, and an int8 per value."""

from __future__ import annotations

import numpy as np

from ringleader.codec import block_scales
from ringleader.codec.codec import Data, Values, encoding_error

MOST = np.float32(127)
LEAST = np.float32(1e-30)
"""Blocks whose values are all smaller than this become zero."""


class Int8:
    """Rounds to the nearest or, with ``rng``, stochastically: then without bias."""

    name = "int8"

    def __init__(self, rng: np.random.Generator | None = None) -> None:
        self._rng = rng
        self._scratch: Values = np.empty(0, np.float32)

    def num_bytes(self, count: int) -> int:
        return 4 * block_scales.num_blocks(count) + count

    def encode(
        self, values: Values, data: Data, error_out: Values | None = None
    ) -> None:
        """Scale every block to +-127 by its largest value, then round."""
        scales, rest = block_scales.split(data, len(values))
        if len(self._scratch) < len(values):
            self._scratch = np.empty(len(values), np.float32)
        rounded = self._scratch[: len(values)]
        pairs = zip(
            block_scales.block_rows(values),
            block_scales.block_rows(rounded),
            strict=True,
        )
        for (which, rows), (_, out) in pairs:
            self._round(rows, scales[which].reshape(-1, 1), out)
        np.copyto(rest.view(np.int8), rounded, casting="unsafe")
        if error_out is not None:
            for which, rows in block_scales.block_rows(rounded):
                np.multiply(rows, scales[which].reshape(-1, 1), rows)
            encoding_error(values, rounded, error_out, scales)

    def _round(self, rows: Values, scales: Values, out: Values) -> None:
        largest = np.maximum.reduce(np.abs(rows, out), axis=1, keepdims=True)
        np.multiply(largest, 1 / MOST, scales)
        np.maximum(largest, LEAST, out=largest)
        np.multiply(rows, np.divide(MOST, largest, largest), out)
        if self._rng is None:
            np.rint(out, out)
        else:
            out += self._rng.random(out.shape, np.float32)
            np.floor(out, out)
            np.clip(out, -MOST, MOST, out)
        if not np.isfinite(scales).all():
            broken = ~np.isfinite(scales[:, 0])
            scales[broken], out[broken] = np.inf, 0

    def decode(self, data: Data, values: Values) -> None:
        """Multiply every int8 by the scale of its block."""
        scales, rest = block_scales.split(data, len(values))
        column = block_scales.check(scales)
        np.copyto(values, rest.view(np.int8))
        for which, rows in block_scales.block_rows(values):
            np.multiply(rows, column[which], rows)
