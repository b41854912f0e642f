"""Test values that verify a collective: exact in float32, different per rank and part.

A buffer consists of equal parts, one per peer. Each part holds ``scale * tile + shift``
where the tile counts 0, 1, ... 60, 0, 1, ...: its period is prime, so that a chunk at
the wrong position is detected. Sums over up to hundreds of ranks stay below 2**24,
below which float32 is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_PERIOD = 61
_TILE = np.tile(np.arange(_PERIOD, dtype=np.float32), 1024)


class Part(NamedTuple):
    """Values of one part of a buffer: ``scale * tile + shift``."""

    scale: int
    shift: int


def source_parts(operation: str, rank: int, size: int) -> list[Part]:
    """Return the input of ``rank``."""
    match operation:
        case "reduce_scatter":
            return [Part(1, rank + part) for part in range(size)]
        case "all_to_all":
            return [Part(1, rank * size + part) for part in range(size)]
        case "broadcast":
            return [Part(1, 1 if rank == 0 else 99)]
        case _:
            return [Part(1, rank)]


def result_parts(operation: str, rank: int, size: int) -> list[Part]:
    """Return the expected result of ``rank``."""
    ranks_sum = size * (size - 1) // 2
    match operation:
        case "all_reduce":
            return [Part(size, ranks_sum)]
        case "reduce_scatter":
            return [Part(size, ranks_sum + size * rank)]
        case "all_gather":
            return [Part(1, part) for part in range(size)]
        case "all_to_all":
            return [Part(1, part * size + rank) for part in range(size)]
        case _:
            return [Part(1, 1)]


def write(buffer: Array, parts: list[Part]) -> None:
    """Fill ``buffer`` block by block, without a second buffer of its size."""
    for block, values in _blocks(buffer, parts):
        block[...] = values


def first_wrong(buffer: Array, parts: list[Part]) -> str | None:
    """Describe the first wrong element of ``buffer``; None if there is none."""
    done = 0
    for block, values in _blocks(buffer, parts):
        wrong = np.flatnonzero(block != values)
        if wrong.size:
            at = int(wrong[0])
            return f"element {done + at} is {block[at]}, must be {values[at]}"
        done += block.size
    return None


def _blocks(buffer: Array, parts: list[Part]) -> Iterator[tuple[Array, Array]]:
    for piece, part in zip(np.split(buffer, len(parts)), parts, strict=True):
        values = _TILE * np.float32(part.scale) + np.float32(part.shift)
        for start in range(0, piece.size, values.size):
            block = piece[start : start + values.size]
            yield block, values[: block.size]
