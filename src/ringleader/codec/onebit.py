"""onebit: the mean magnitude per block of 2048 values, and the sign of each value."""

from __future__ import annotations

import numpy as np

from ringleader.codec import block_scales
from ringleader.codec.codec import Data, Values, encoding_error

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, 8)
SIGNS = np.subtract(1, 2 * _BITS.astype(np.float32), dtype=np.float32)
"""byte -> the eight signs it encodes, highest bit first."""


class OneBit:
    """Replaces every magnitude by the mean of its block, which minimizes the error.

    The error is as large as the signal, so use it with error feedback only.
    """

    name = "onebit"

    def __init__(self) -> None:
        self._scratch: Values = np.empty((0, 8), np.float32)

    def num_bytes(self, count: int) -> int:
        return 4 * block_scales.num_blocks(count) + -(-count // 8)

    def encode(
        self, values: Values, data: Data, error_out: Values | None = None
    ) -> None:
        """Write the scales, then the signs. 0 counts as positive."""
        scales, rest = block_scales.split(data, len(values))
        magnitudes = self._scratch_rows(len(values)).reshape(-1)[: len(values)]
        np.abs(values, magnitudes)
        for which, rows in block_scales.block_rows(magnitudes):
            np.mean(rows, axis=1, out=scales[which])
            if not np.isfinite(scales[which]).all():  # or only their sum overflowed
                wide = np.mean(rows, axis=1, dtype=np.float64)
                scales[which] = np.where(np.isfinite(wide), wide, np.inf)
        rest[:] = np.packbits(np.signbit(values))
        if error_out is not None:
            self.decode(data, error_out)
            encoding_error(values, error_out, error_out, scales)

    def decode(self, data: Data, values: Values) -> None:
        """Multiply every sign by the scale of its block."""
        scales, rest = block_scales.split(data, len(values))
        column = block_scales.check(scales)
        signs = self._scratch_rows(len(values))[: len(rest)]
        np.take(SIGNS, rest, axis=0, out=signs, mode="clip")
        flat = signs.reshape(-1)[: len(values)]
        pairs = zip(
            block_scales.block_rows(flat), block_scales.block_rows(values), strict=True
        )
        for (which, rows), (_, out) in pairs:
            np.multiply(rows, column[which], out)

    def _scratch_rows(self, count: int) -> Values:
        if len(self._scratch) * 8 < count:
            self._scratch = np.empty((-(-count // 8), 8), np.float32)
        return self._scratch
