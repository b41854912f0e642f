"""Arrays for prepared calls, which know their tensors only by their addresses.

A collective of a few bytes costs what its Python costs, and Python that has not run
since 4 MiB went through the cache costs three times as much. A prepared call therefore
looks up every view and function beforehand; each engine's ``prepare`` makes its own.
The bytes on the wire are the same as those of the general path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringleader.engine.arrays import array_at, bytes_of

Addresses = tuple[int, ...]
"""Where the tensors of a call begin: its inputs, then its outputs."""
Chunks = list[Any]
"""The chunks of a call, in the order of its tensors; see the classes below."""

MAX_CHUNKS = 64
"""Chunks kept per prepared call; a view costs a microsecond to make again."""


class ChunksByAddress(dict[Addresses, Chunks]):
    """The arrays of calls of one kind, by address. Programs reuse few addresses."""

    def __init__(
        self, tensors: Sequence[int], lengths: Sequence[int], dtype: np.dtype[Any]
    ) -> None:
        """Chunks of ``lengths`` elements lie one after another in the ``tensors``.

        A chunk that does not fit into the rest of a tensor begins the next one.
        """
        super().__init__()
        self._tensors = tuple(tensors)
        self._places = _places(tensors, lengths)
        self._dtype = dtype
        self._most = max(1, MAX_CHUNKS // max(1, len(self._places)))

    def __missing__(self, addresses: Addresses) -> Chunks:
        if len(self) >= self._most:
            self.clear()
        pairs = zip(addresses, self._tensors, strict=True)
        arrays = [array_at(address, count, self._dtype) for address, count in pairs]
        chunks = [arrays[i][start:stop] for i, start, stop in self._places]
        self[addresses] = chunks
        return chunks


class BytesByAddress(ChunksByAddress):
    """The bytes of every chunk, then the array of every chunk.

    A call that copies a kilobyte without numpy, whose code is seldom in the cache after
    all that torch has done meanwhile, is 1 to 2 us faster (2026-11-17).
    """

    def __missing__(self, addresses: Addresses) -> Chunks:
        arrays = super().__missing__(addresses)
        all_bytes = [bytes_of(array) for array in arrays]
        chunks = self[addresses] = [*all_bytes, *arrays]
        return chunks


def _places(
    tensors: Sequence[int], lengths: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(tensor, start, stop) of every chunk."""
    places, tensor, start = [], 0, 0
    for length in lengths:
        if start + length > tensors[tensor]:
            tensor, start = tensor + 1, 0
        places.append((tensor, start, start + length))
        start += length
    return places
