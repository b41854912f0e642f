"""Sets of positions as sorted, disjoint, half-open intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ringleader.errors import InternalError


class Interval(NamedTuple):
    """The positions ``begin`` to ``end - 1`` of an epoch's order."""

    begin: int
    end: int


Intervals = tuple[Interval, ...]
"""Sorted and disjoint; neighbours are merged."""


def union(*parts: Iterable[Interval]) -> Intervals:
    """Return all positions of ``parts``. Raises InternalError if one is in two."""
    merged: list[Interval] = []
    for begin, end in sorted(interval for part in parts for interval in part):
        if merged and begin < merged[-1].end:
            raise InternalError(f"positions {begin} to {merged[-1].end - 1} twice")
        if merged and begin == merged[-1].end:
            merged[-1] = Interval(merged[-1].begin, end)
        elif begin < end:
            merged.append(Interval(begin, end))
    return tuple(merged)


def split(intervals: Iterable[Interval], size: int) -> tuple[Intervals, Intervals]:
    """Return the first ``size`` positions, and the others."""
    first: list[Interval] = []
    rest: list[Interval] = []
    for begin, end in intervals:
        middle = min(end, begin + size)
        size -= middle - begin
        if begin < middle:
            first.append(Interval(begin, middle))
        if middle < end:
            rest.append(Interval(middle, end))
    return tuple(first), tuple(rest)


def num_positions(intervals: Iterable[Interval]) -> int:
    """Return the number of positions."""
    return sum(end - begin for begin, end in intervals)
