"""Which algorithm adds sparse vectors with the fewest bytes; equal on every rank.

Bytes that each of n ranks sends, for vectors of N values and entries of 6 bytes:

    all_gather      (n-1) * 6 * entries             every rank adds up everything
    reduce_scatter  (n-1)/n * (6 * entries + sums)  every rank adds up one range, then
                                                    the sums are gathered
    dense           (n-1)/n * 8 * N                 an all_reduce of all values

The sums of a range take 6 bytes per index that any rank selected, or 4 bytes per value
of the range if that is less. If ranks select similar indices, reduce_scatter is best
from three ranks on.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise

from ringleader.compression import sparse_format

ROUND_BYTES = 20_000
"""Bytes that one more round of messages is worth: 0.16 ms at 1 Gbit/s."""
VALUE_BYTES = 4


class SparseAlgorithm(Enum):
    """The algorithms that add up sparse vectors."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    DENSE = "dense"


def choose_sparse_algorithm(
    total: int,
    count: int,
    size: int,
    *,
    overlap: float | None = None,
    is_selected: bool = False,
) -> tuple[SparseAlgorithm, str]:
    """Return (algorithm, reason) for ``count`` entries per rank of ``total`` values.

    ``overlap`` is the number of distinct indices per entry of all ranks, as observed in
    the last call: 1 if no two ranks selected the same index, 1/size if all selected the
    same. None assumes independent selections. ``is_selected`` says that the entries
    have been selected already, which rules DENSE out.
    """
    costs = {
        SparseAlgorithm.DENSE: dense_bytes(total, size),
        SparseAlgorithm.ALL_GATHER: all_gather_bytes(total, count, size),
        SparseAlgorithm.REDUCE_SCATTER: reduce_scatter_bytes(
            total, count, size, overlap=overlap
        ),
    }
    if is_selected:
        del costs[SparseAlgorithm.DENSE]
    algorithm = min(costs, key=lambda each: costs[each])
    text = ", ".join(f"{each.value} {int(cost)}" for each, cost in costs.items())
    return algorithm, f"bytes per rank: {text}"


def dense_bytes(total: int, size: int) -> float:
    """Return the cost of an all_reduce of all values, in two rounds."""
    return 2 * (size - 1) / size * VALUE_BYTES * total + 2 * ROUND_BYTES


def all_gather_bytes(total: int, count: int, size: int) -> float:
    """Return the cost of two rounds: the counts, then the entries."""
    return (size - 1) * sparse_format.num_bytes(total, count) + 2 * ROUND_BYTES


def reduce_scatter_bytes(
    total: int, count: int, size: int, *, overlap: float | None = None
) -> float:
    """Return the cost of four rounds: counts, entries to owners, counts, sums."""
    if overlap is None:
        selected = expected_union(total, count, size)
    else:
        selected = overlap * size * count
    sums = min(sparse_format.num_bytes(total, round(selected)), VALUE_BYTES * total)
    share = (size - 1) / size
    return share * (sparse_format.num_bytes(total, count) + sums) + 4 * ROUND_BYTES


def expected_union(total: int, count: int, size: int) -> float:
    """Return how many distinct indices independent selections have together."""
    return total * (1 - (1 - count / total) ** size) if total else 0.0


def owned_ranges(total: int, size: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the indices that each rank adds up: whole blocks."""
    blocks, block = sparse_format.num_blocks(total), sparse_format.BLOCK
    edges = [min(total, blocks * i // size * block) for i in range(size + 1)]
    return list(pairwise(edges))
