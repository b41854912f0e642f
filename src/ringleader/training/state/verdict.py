"""Compares the digests of members: which tensors differ, and whose copy is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ringleader.training.state.digests import Digests


class Repair(NamedTuple):
    """``target`` has another value of ``name`` than most, and gets ``holder``'s."""

    name: str
    holder: int
    target: int


def find_repairs(
    digests: Mapping[int, Digests], sources: Sequence[int]
) -> list[Repair]:
    """Return what has to be copied again, in the order of the state.

    The value that most sources have is kept; on a tie, that of the first source among
    those. All members compute the same list. ``digests`` are by rank.
    """
    found: list[Repair] = []
    for name in digests[sources[0]].parts:
        votes = {rank: digests[rank].parts.get(name, b"") for rank in sources}
        count = Counter(votes.values())
        kept = max(count, key=lambda digest: (count[digest], -_first(votes, digest)))
        holder = _first(votes, kept)
        found += [
            Repair(name, holder, rank)
            for rank, each in sorted(digests.items())
            if each.parts.get(name) != kept
        ]
    return found


def _first(votes: Mapping[int, bytes], digest: bytes) -> int:
    """Return the lowest rank with this digest."""
    return min(rank for rank, each in votes.items() if each == digest)
