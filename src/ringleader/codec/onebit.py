"""onebit: per block of 2048 values their mean size, and the sign of each."""

from __future__ import annotations

import numpy as np

from ringleader.codec import blocks
from ringleader.codec.codec import Data, Values, leave

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, 8)
SIGNS = np.subtract(1, 2 * _BITS.astype(np.float32), dtype=np.float32)
"""The eight signs that a byte stands for; the first is its highest bit."""


class OneBit:
    """The mean size is what comes closest to a block, if all may differ in sign only.

    What is lost is as large as what is kept: of use with error feedback only.
    """

    name = "onebit"

    def __init__(self) -> None:
        self._scratch: Values = np.empty((0, 8), np.float32)

    def num_bytes(self, count: int) -> int:
        """A scale per block and a bit per value."""
        return 4 * blocks.num_blocks(count) + -(-count // 8)

    def encode(self, values: Values, data: Data, lost: Values | None = None) -> None:
        """Write the scales, then the signs; 0 counts as positive."""
        scales, rest = blocks.split(data, len(values))
        sizes = self._room(len(values)).reshape(-1)[: len(values)]
        np.abs(values, sizes)
        for which, rows in blocks.rows_of(sizes):
            np.mean(rows, axis=1, out=scales[which])
            if not np.isfinite(scales[which]).all():  # or is it the sum that is not?
                wide = np.mean(rows, axis=1, dtype=np.float64)
                scales[which] = np.where(np.isfinite(wide), wide, np.inf)
        rest[:] = np.packbits(np.signbit(values))
        if lost is not None:
            self.decode(data, lost)
            leave(values, lost, lost, scales)

    def decode(self, data: Data, values: Values) -> None:
        """The scale of its block with each sign."""
        scales, rest = blocks.split(data, len(values))
        column = blocks.check(scales)
        signs = self._room(len(values))[: len(rest)]
        np.take(SIGNS, rest, axis=0, out=signs, mode="clip")
        flat = signs.reshape(-1)[: len(values)]
        pairs = zip(blocks.rows_of(flat), blocks.rows_of(values), strict=True)
        for (which, rows), (_, out) in pairs:
            np.multiply(rows, column[which], out)

    def _room(self, count: int) -> Values:
        if len(self._scratch) * 8 < count:
            self._scratch = np.empty((-(-count // 8), 8), np.float32)
        return self._scratch
