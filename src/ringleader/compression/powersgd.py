"""PowerSGD: every matrix of a bucket as a product of two thin ones.

Two all_reduces per bucket: the P of all matrices together with all that is too small or
no matrix, then the Q. What of this rank's matrix M is applied is P times its own Q', as
the mean of these over all ranks is P times the mean of Q'. That mean is shortened, and
rank 0 takes on itself what this changes. So residual and mean add up to the input
exactly, however good the approximation is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import lowrank
from ringleader.compression.bucket import Bucket, add
from ringleader.compression.memory import BASIS, Slot
from ringleader.compression.peers import Peers
from ringleader.engine.arrays import Array, as_array
from ringleader.errors import ConfigError


@dataclass(slots=True)
class _Matrix:
    """One matrix on its way: M, and its P and Q as far as they are known."""

    slot: Slot
    total: Tensor
    """Where the gradient was; in the end the mean is there."""
    left: Tensor
    """This rank's P; then the orthonormal P of all."""
    right: Tensor
    """This rank's Q."""


class LowRank:
    """Matrices by products of ``rank``. One with a value that is not finite becomes NaN
    as a whole, and its residual stays what it was before the step.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def reduce(self, bucket: Bucket, peers: Peers) -> None:
        """Average P and the rest, then Q."""
        matrices, rest = [], []
        for slot in bucket.slots:
            if self._fits(slot):
                matrices.append(self._begin(slot, bucket))
            else:
                part = bucket.out[slot.run]
                add(part, bucket.owed(slot), part)
                rest.append(slot)
        parts = [m.left for m in matrices] + [bucket.out[slot.run] for slot in rest]
        means = _mean(parts, peers)
        lefts, others = means[: len(matrices)], means[len(matrices) :]
        for slot, mean in zip(rest, others, strict=True):
            add(mean, None, bucket.out[slot.run])
            if bucket.held is not None:
                bucket.held[slot.run].zero_()
        if matrices:
            for matrix, left in zip(matrices, lefts, strict=True):
                _turn(matrix, left)
            rights = _mean([m.right for m in matrices], peers)
            for matrix, right in zip(matrices, rights, strict=True):
                _finish(matrix, right, bucket, peers)

    def _fits(self, slot: Slot) -> bool:
        rows, columns = lowrank.matrix_shape(slot.shape)
        return lowrank.is_worth_it(rows, columns, self._rank)

    def _begin(self, slot: Slot, bucket: Bucket) -> _Matrix:
        rows, columns = lowrank.matrix_shape(slot.shape)
        total = bucket.out[slot.run].view(rows, columns)
        owed = bucket.owed(slot)
        more = None if owed is None else owed.view(rows, columns)
        basis = self._basis(slot, columns, bucket).to(total.device)
        left = lowrank.add_and_times(total, more, basis)
        return _Matrix(slot, total, left, left)

    def _basis(self, slot: Slot, columns: int, bucket: Bucket) -> Tensor:
        kept = bucket.memory.get(BASIS, slot.name)
        if kept is None:
            start = bucket.start(slot.name)
            return torch.from_numpy(lowrank.fresh_basis(start, columns, self._rank))
        if kept.shape != (columns, self._rank):
            text = f"{slot.name!r} needs a basis of {(columns, self._rank)}"
            raise ConfigError(
                f"compression: {text}, not {tuple(kept.shape)}: call reset(), or load "
                "the state of this model"
            )
        return kept


def _mean(parts: Sequence[Tensor], peers: Peers) -> list[Tensor]:
    """The mean of each, all in one message; flat."""
    message = torch.cat([part.reshape(-1) for part in parts])
    peers.mean(message)
    return list(torch.split(message, [part.numel() for part in parts]))


def _turn(matrix: _Matrix, left: Tensor) -> None:
    """From the mean of P to this rank's Q."""
    columns = _host(left).reshape(matrix.left.shape)
    if np.isfinite(columns).all():
        columns = lowrank.orthonormal(columns)
        columns = lowrank.shortened(columns, tiny=lowrank.TINY_LEFT)
    matrix.left = torch.from_numpy(columns).to(left.device)
    matrix.right = lowrank.transposed_times(matrix.total, matrix.left)


def _finish(matrix: _Matrix, right: Tensor, bucket: Bucket, peers: Peers) -> None:
    """From the mean of Q to the mean of M."""
    slot, total = matrix.slot, matrix.total
    held = None if bucket.held is None else bucket.held[slot.run].view(total.shape)
    exact = _host(right).reshape(matrix.right.shape)
    if not np.isfinite(exact).all():  # so it is on all ranks
        total.fill_(torch.nan)
        if held is not None:
            owed = bucket.owed(slot)
            held.copy_(held.zero_() if owed is None else owed.view(total.shape))
        return
    short = lowrank.shortened(exact, tiny=lowrank.TINY_RIGHT)
    if peers.rank == 0:
        more = peers.size * (short - exact)
        matrix.right += torch.from_numpy(more).to(total.device)
    mean = torch.from_numpy(short).to(total.device)
    lowrank.settle(total, matrix.left, matrix.right, mean, held)
    basis = lowrank.next_basis(short, bucket.start(slot.name))
    bucket.memory.put(BASIS, slot.name, torch.from_numpy(basis))


def _host(tensor: Tensor) -> Array:
    return as_array(tensor.cpu().contiguous())
