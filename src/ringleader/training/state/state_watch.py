"""Finds members of an exact class whose states differ, for a few bytes per step.

Every few steps each member hashes one slice of its state. The 8 bytes travel in the
next step's sideband, so after that step all members know all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

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
"""Told by a member that has hashed nothing."""

DOUBT = 1
"""Told by a member that knows of a difference which was not repaired yet."""


def slice_digest(state: ReplicatedState, version: int, every: int = EVERY) -> int:
    """Return 64 bits of the digest of this version's slice; NOTHING in most steps.

    The plain values, which are small, are part of every slice.
    """
    if version % every:
        return NOTHING
    listed, tensors = state.snapshot()
    slices = slices_of(listed.num_bytes, SLICES, cut_by=listed.tensors)
    whole = hashlib.sha256(listed.values)
    if slices:
        chosen = slices[version // every % len(slices)]
        whole.update(ByteViews(tensors).read(chosen).numpy().data)
    return int.from_bytes(whole.digest()[:8], "little") | 2


def is_difference(told: Iterable[int]) -> bool:
    """Whether the states of members differ, by what they told in one step.

    Members that hashed nothing, such as one that has just joined, do not count.
    """
    found = set(told) - {NOTHING}
    return len(found) > 1 or DOUBT in found


def slices_of(num_bytes: int, count: int, *, cut_by: tuple[Entry, ...]) -> list[Piece]:
    """Cut a state into about ``count`` slices, at whole elements."""
    size = max(_MIN_SLICE_BYTES, -(-num_bytes // count))
    return cut(cut_by, -(-size // _ALIGNMENT) * _ALIGNMENT)
