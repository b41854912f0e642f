"""Finds members of an exact class whose states differ, for a few bytes per step.

Every few steps each member hashes one slice of its state. The 8 bytes travel in the
next step's sideband, so after that step all members know all of them. If they differ,
all call ``repair_state`` at that step boundary.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping

from ringleader.training.state.manifest import Entry
from ringleader.training.state.pieces import ByteViews, Piece, cut
from ringleader.training.state.replicated_state import ReplicatedState

EVERY = 16
"""Steps between two slices."""

SLICES = 64
"""Slices of a state: all of it is compared within ``EVERY * SLICES`` steps."""

_MIN_SLICE_BYTES = 1 << 16
_ALIGNMENT = 16
"""A slice begins at a multiple of it, so that no element is cut."""

NOTHING = 0
"""The digest of a step in which nothing is hashed."""


def slice_digest(state: ReplicatedState, version: int) -> int:
    """Return 64 bits of the digest of this version's slice; NOTHING in most steps.

    The plain values, which are small, are part of every slice.
    """
    if version % EVERY:
        return NOTHING
    listed, tensors = state.snapshot()
    slices = slices_of(listed.num_bytes, SLICES, cut_by=listed.tensors)
    whole = hashlib.sha256(listed.values)
    if slices:
        chosen = slices[version // EVERY % len(slices)]
        whole.update(ByteViews(tensors).read(chosen).numpy().data)
    return int.from_bytes(whole.digest()[:8], "little") or 1


def differing(digests: Mapping[int, int]) -> list[int]:
    """Return the ranks whose digest differs from most; on a tie from the lowest rank's.

    All members compute the same from the same sideband. Ranks that hashed nothing, such
    as one that has just joined, are left out.
    """
    told = {rank: each for rank, each in sorted(digests.items()) if each != NOTHING}
    if not told:
        return []
    (kept, _), *_ = Counter(told.values()).most_common(1)
    return [rank for rank, each in told.items() if each != kept]


def slices_of(num_bytes: int, count: int, *, cut_by: tuple[Entry, ...]) -> list[Piece]:
    """Cut a state into about ``count`` slices, at whole elements."""
    size = max(_MIN_SLICE_BYTES, -(-num_bytes // count))
    return cut(cut_by, -(-size // _ALIGNMENT) * _ALIGNMENT)
