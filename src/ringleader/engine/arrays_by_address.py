"""Arrays for prepared calls, which know their tensor only by its address.

A collective of a few bytes costs what its Python costs, and Python that has not run
since 4 MiB went through the cache costs three times as much. A prepared call therefore
looks up every view and function beforehand; each engine's ``prepare`` makes its own.
The bytes on the wire are the same as those of the general path.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ringleader.engine.arrays import Array, array_at

MAX_ADDRESSES = 64
"""Addresses kept per prepared call; a view costs a microsecond to make again."""


class ArraysByAddress(dict[int, Array]):
    """Arrays of one length and dtype, by address. Programs reuse few addresses."""

    def __init__(self, count: int, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self._count = count
        self._dtype = dtype

    def __missing__(self, address: int) -> Array:
        if len(self) >= MAX_ADDRESSES:
            self.clear()
        array = self[address] = array_at(address, self._count, self._dtype)
        return array
