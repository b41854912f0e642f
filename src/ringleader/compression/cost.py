"""Which sparse exchange moves the fewest bytes; the same answer on every rank.

What each rank sends, for vectors of N values, entries of 6 bytes, n ranks:

    everything   (n-1) * 6 * entries           each rank gets all, and adds it up
    owners       (n-1)/n * (6 * entries + sums)  each rank adds up a range, all get sums
    dense        (n-1)/n * 8 * N               as if nothing were left out

Sums of a range take 6 bytes per place that anybody chose, or 4 per value if that is
less. Where ranks choose alike, owners win from three ranks on.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise

from ringleader.compression import entries as packed

ROUND_BYTES = 20_000
"""What one more round of messages is worth: 0.16 ms at 1 Gbit/s."""
VALUE_BYTES = 4


class Way(Enum):
    """How sparse vectors are added up."""

    EVERYTHING = "everything"
    OWNERS = "owners"
    DENSE = "dense"


def choose(
    total: int,
    count: int,
    size: int,
    *,
    overlap: float | None = None,
    is_chosen: bool = False,
) -> tuple[Way, str]:
    """(way, reason) for ``count`` entries per rank of ``total`` values.

    ``overlap``: places that anybody chose, per entry of all ranks, as it was last time:
    1 if no two ranks chose the same, 1/size if all did. None: as by chance.
    ``is_chosen``: the entries have been chosen already, so dense is no way any more.
    """
    prices = {
        Way.DENSE: dense_bytes(total, size),
        Way.EVERYTHING: everything_bytes(total, count, size),
        Way.OWNERS: owners_bytes(total, count, size, overlap=overlap),
    }
    if is_chosen:
        del prices[Way.DENSE]
    way = min(prices, key=lambda each: prices[each])
    text = ", ".join(f"{each.value} {int(cost)}" for each, cost in prices.items())
    return way, f"bytes per rank: {text}"


def dense_bytes(total: int, size: int) -> float:
    """An all_reduce of everything, in two rounds."""
    return 2 * (size - 1) / size * VALUE_BYTES * total + 2 * ROUND_BYTES


def everything_bytes(total: int, count: int, size: int) -> float:
    """Counts first, then an all_gather of entries."""
    return (size - 1) * packed.num_bytes(total, count) + 2 * ROUND_BYTES


def owners_bytes(
    total: int, count: int, size: int, *, overlap: float | None = None
) -> float:
    """Counts, entries to their owners, counts again, sums to everybody."""
    chosen = union(total, count, size) if overlap is None else overlap * size * count
    sums = min(packed.num_bytes(total, round(chosen)), VALUE_BYTES * total)
    share = (size - 1) / size
    return share * (packed.num_bytes(total, count) + sums) + 4 * ROUND_BYTES


def union(total: int, count: int, size: int) -> float:
    """Places that somebody chooses, when ranks choose independently."""
    return total * (1 - (1 - count / total) ** size) if total else 0.0


def ranges(total: int, size: int) -> list[tuple[int, int]]:
    """(begin, end) of the places that each rank owns: whole blocks, evenly."""
    blocks = packed.num_blocks(total)
    edges = [min(total, blocks * i // size * packed.BLOCK) for i in range(size + 1)]
    return list(pairwise(edges))
