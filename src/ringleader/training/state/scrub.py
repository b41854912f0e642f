"""Re-aligns the states of a mixed class: machines whose low bits drift apart.

In turns one slice of the state is sent by its owner and adopted by all, so every byte
is equal again after at most ``SLICES`` turns. The drift is measured on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.checkpoint import dtypes
from ringleader.groups.group import Group
from ringleader.training.state.manifest import Entry
from ringleader.training.state.pieces import ByteViews, Piece, size_of
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.state.state_watch import slices_of

_log = logging.getLogger(__name__)

EVERY = 4
"""Steps between two turns."""

SLICES = 256

MAX_DRIFT = 1e-3
"""A relative difference above it is not rounding: it is logged as an error."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far this member's slice was from its owner's, relative to the largest value.

    ``name`` is the tensor with the largest difference.
    """

    relative: float = 0.0
    name: str = ""


def scrub(
    group: Group, state: ReplicatedState, turn: int, names: Sequence[str]
) -> Drift:
    """Adopt this turn's slice from its owner; all members call it after a step.

    ``names`` are those of the members. Returns the drift of this one; 0 on the owner.
    """
    listed, tensors = state.snapshot()
    slices = slices_of(listed.num_bytes, SLICES, cut_by=listed.tensors)
    if not slices:
        return Drift()
    chosen, owner = slices[turn % len(slices)], turn % group.size
    views = ByteViews(tensors)
    mine = views.read(chosen)
    if group.rank == owner:
        group.broadcast(mine, owner)
        return Drift()
    theirs = torch.empty(size_of(chosen), dtype=torch.uint8)
    group.broadcast(theirs, owner)
    if torch.equal(mine, theirs):
        return Drift()
    drift = _drift(chosen, {e.name: e for e in listed.tensors}, mine, theirs)
    views.write(chosen, theirs)
    views.write_back()
    _report(drift, names[owner])
    return drift


def _drift(
    piece: Piece, entries: dict[str, Entry], mine: Tensor, theirs: Tensor
) -> Drift:
    """Return the largest difference of the tensors in a piece."""
    found = Drift()
    begin = 0
    for span in piece:
        part = slice(begin, begin + span.num_bytes)
        dtype = dtypes.dtype_of(entries[span.name].dtype)
        drift = _relative(mine[part].clone(), theirs[part].clone(), dtype)
        if drift > found.relative:
            found = Drift(drift, span.name)
        begin += span.num_bytes
    return found


def _relative(mine: Tensor, theirs: Tensor, dtype: torch.dtype) -> float:
    """Return the largest difference, divided by the largest magnitude."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    here, there = (each.view(dtype).to(wide) for each in (mine, theirs))
    difference = (here - there).abs().max().item()
    largest = there.abs().max().item()
    if difference == 0.0:
        return 0.0
    return difference / largest if largest > 0.0 else float("inf")


def _report(drift: Drift, owner: str) -> None:
    if drift.relative > MAX_DRIFT:
        _log.error(
            "%s differed from that on %s by %.1e of its largest value, which is more "
            "than rounding; it was replaced. Check that all machines run the same "
            "script, and their memory.",
            drift.name,
            owner,
            drift.relative,
        )
    elif drift.relative:
        _log.debug("%s drifted by %.1e, re-aligned", drift.name, drift.relative)
