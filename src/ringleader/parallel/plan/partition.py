"""Divides a row of layers into consecutive stages, so that the worst is the best."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf

Cost = Callable[[int, int, int], float]
"""Cost of a stage from the layer ``begin`` to ``end - 1``: ``(stage, begin, end)``."""


def partition(layers: int, stages: int, cost: Cost) -> list[int] | None:
    """Return the layers of each stage, or None if every division costs infinity.

    The largest cost of a stage is minimal; among equals, the sum of the costs is small.
    Every stage gets at least one layer. Takes ``stages * layers ** 2`` calls of
    ``cost``.

    >>> partition(6, 2, lambda stage, begin, end: (end - begin) * (1 + stage))
    [4, 2]
    """
    nothing = (inf, inf)
    best: list[tuple[float, float]] = [(0.0, 0.0)] + [nothing] * layers
    begins: list[list[int]] = []
    for stage in range(stages):
        row = [nothing] * (layers + 1)
        chosen = [0] * (layers + 1)
        for end in range(stage + 1, layers - (stages - stage - 1) + 1):
            for begin in range(stage, end):
                worst, total = best[begin]
                if worst > row[end][0]:
                    continue
                mine = cost(stage, begin, end)
                found = (max(worst, mine), total + mine)
                if found < row[end]:
                    row[end], chosen[end] = found, begin
        best = row
        begins.append(chosen)
    if best[layers][0] == inf:
        return None
    ends = [layers]
    for chosen in reversed(begins):
        ends.append(chosen[ends[-1]])
    ends.reverse()
    return [end - begin for begin, end in pairwise(ends)]


def equal_counts(layers: int, stages: int) -> list[int]:
    """Return the same number of layers for each stage; the first ones get the rest.

    >>> equal_counts(8, 3)
    [3, 3, 2]
    """
    each, rest = divmod(layers, stages)
    return [each + (stage < rest) for stage in range(stages)]
