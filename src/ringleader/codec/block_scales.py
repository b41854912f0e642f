"""The float32 scale that every block of values has in int8 and onebit encodings.

An encoding starts with the scales of all blocks; the quantized values follow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringleader.codec.codec import BLOCK, Data, Values


def num_blocks(count: int) -> int:
    """Return the number of blocks, and so of scales, of ``count`` values."""
    return -(-count // BLOCK)


def block_rows(values: Values) -> list[tuple[slice, Values]]:
    """Split ``values`` into matrices with one block per row: (scale indices, rows).

    The whole blocks form one matrix; a shorter last block forms a second one.
    """
    whole = len(values) // BLOCK
    parts = []
    if whole:
        parts.append((slice(0, whole), values[: whole * BLOCK].reshape(whole, BLOCK)))
    if len(values) % BLOCK:
        parts.append((slice(whole, whole + 1), values[whole * BLOCK :].reshape(1, -1)))
    return parts


def split(data: Data, count: int) -> tuple[NDArray[np.float32], Data]:
    """Split the encoding of ``count`` values into (scales, quantized values)."""
    size = 4 * num_blocks(count)
    return data[:size].view(np.float32), data[size:]


def check(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scales as a column of factors; ValueError for an invalid scale.

    An infinite scale marks a block that contained a value that is not finite. Its
    factor is NaN, so the whole block decodes to NaN.
    """
    if not scales.min(initial=0) >= 0:  # also true for NaN
        raise ValueError("a scale is negative or not a number")
    if scales.max(initial=0) == np.inf:
        scales = np.where(np.isinf(scales), np.float32(np.nan), scales)
    return scales.reshape(-1, 1)
