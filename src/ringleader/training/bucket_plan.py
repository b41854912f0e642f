"""Divides the parameters into buckets, in the same way on every member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FIRST_BYTES: Final = 1 << 20
"""Limit of the first bucket, small so that it leaves early in backward (as DDP's)."""

BUCKET_BYTES: Final = 25 << 20
"""Limit of the others. Smaller ones cost latency, larger ones overlap less."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Kind and size of one parameter."""

    kind: str
    """Parameters of one kind (dtype and device) share a flat buffer."""
    count: int
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A range of one flat buffer that is reduced by one call."""

    kind: str
    start: int
    stop: int
    leaves: tuple[int, ...]
    """Positions of its parameters in the list that was given."""


def plan_buckets(
    leaves: Sequence[Leaf], *, first: int = FIRST_BYTES, limit: int = BUCKET_BYTES
) -> list[Bucket]:
    """Return the buckets in the order in which backward fills them.

    Backward ends with the parameters that were registered first, so buckets are made
    from the last parameter to the first one. A parameter is never split.
    """
    buckets: list[Bucket] = []
    open_leaves: dict[str, list[int]] = {}
    ends: dict[str, int] = {}
    for position in reversed(range(len(leaves))):
        leaf = leaves[position]
        waiting = open_leaves.setdefault(leaf.kind, [])
        waiting.append(position)
        size = sum(leaves[i].count for i in waiting) * leaf.item_bytes
        if size >= (limit if buckets else first):
            _close(leaf.kind, open_leaves, ends, leaves, buckets)
    for kind in list(open_leaves):
        _close(kind, open_leaves, ends, leaves, buckets)
    return buckets


def _close(
    kind: str,
    open_leaves: dict[str, list[int]],
    ends: dict[str, int],
    leaves: Sequence[Leaf],
    buckets: list[Bucket],
) -> None:
    waiting = open_leaves.pop(kind)
    start = ends.get(kind, 0)
    stop = start + sum(leaves[i].count for i in waiting)
    ends[kind] = stop
    buckets.append(Bucket(kind, start, stop, tuple(waiting)))
