"""Divides samples among ranks in proportion to weights."""

from __future__ import annotations

from collections.abc import Sequence


def quotas(count: int, weights: Sequence[float]) -> list[int]:
    """Divide ``count`` samples; the largest remainders get the rest, lower ranks first.

    Every rank gets at least one sample, if there are enough.

    >>> quotas(10, [2.0, 1.0, 1.0])
    [5, 3, 2]
    >>> quotas(10, [1.0, 0.01, 0.01])
    [8, 1, 1]
    """
    total = sum(weights)
    exact = [count * weight / total for weight in weights]
    if count >= len(weights) and min(exact) < 1:
        rest = count - len(weights)
        exact = [1 + rest * weight / total for weight in weights]
    whole = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda r: (whole[r] - exact[r], r))
    for rank in order[: count - sum(whole)]:
        whole[rank] += 1
    return whole
