"""Scales of blocks: how codecs with few bits keep the size of what they write."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringleader.codec.codec import BLOCK, Data, Values

Rows = NDArray[np.float32]


def num_blocks(count: int) -> int:
    """How many scales ``count`` values have."""
    return -(-count // BLOCK)


def rows_of(values: Values) -> list[tuple[slice, Values]]:
    """(which scales, their values in rows): whole blocks, and a shorter last one."""
    whole = len(values) // BLOCK
    parts = []
    if whole:
        parts.append((slice(0, whole), values[: whole * BLOCK].reshape(whole, BLOCK)))
    if len(values) % BLOCK:
        parts.append((slice(whole, whole + 1), values[whole * BLOCK :].reshape(1, -1)))
    return parts


def split(data: Data, count: int) -> tuple[NDArray[np.float32], Data]:
    """(the scales, what follows them) of the data of ``count`` values."""
    size = 4 * num_blocks(count)
    return data[:size].view(np.float32), data[size:]


def check(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scales as a column to multiply by; ValueError for what is none.

    An infinite scale says that the block was not finite; all of it becomes NaN.
    """
    if not scales.min(initial=0) >= 0:  # nor is NaN
        raise ValueError("a scale is negative or not a number")
    if scales.max(initial=0) == np.inf:
        scales = np.where(np.isinf(scales), np.float32(np.nan), scales)
    return scales.reshape(-1, 1)
