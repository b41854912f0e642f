"""Numbers that prove a collective: exact in float32, different for every rank and part.

A buffer is a row of equal parts, one per peer. Each part holds ``scale * tile + shift``
where the tile counts 0, 1, ... 60, 0, 1, ...: sixty-one is prime, so that a chunk that
lands at the wrong place shows. Sums over any sensible number of ranks stay below 2**24,
where float32 is exact.
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
    """What one part of a buffer holds."""

    scale: int
    shift: int


def source_parts(operation: str, rank: int, size: int) -> list[Part]:
    """What ``rank`` puts in."""
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
    """What ``rank`` must find afterwards."""
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
    """Fill ``buffer``, a block at a time: no second buffer of that size exists."""
    for block, values in _blocks(buffer, parts):
        block[...] = values


def first_wrong(buffer: Array, parts: list[Part]) -> str | None:
    """Where ``buffer`` differs from what it must hold, in words; None when exact."""
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
