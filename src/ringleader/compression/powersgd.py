"""PowerSGD: every matrix of a bucket is sent as a product of two thin matrices.

A bucket takes two all_reduces: the P of all matrices together with the parameters that
are too small or no matrices, then the Q. The part of this rank's matrix M that is
applied is P times its own Q', because the mean of these over all ranks is P times the
mean of Q'. That mean is rounded, and rank 0 adds the rounding error to its own Q. So
residuals and mean add up to the input exactly, however good the approximation is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import low_rank
from ringleader.compression.bucket import Bucket, add
from ringleader.compression.communicator import Communicator
from ringleader.compression.compressor_state import BASIS, ParameterSlice
from ringleader.engine.arrays import Array, as_array
from ringleader.errors import ConfigError


@dataclass(slots=True)
class _Matrix:
    """One matrix M with its factors P and Q."""

    param: ParameterSlice
    total: Tensor
    """The gradient plus the residual; at the end the mean."""
    left: Tensor
    """This rank's P; then the orthonormal P of all ranks."""
    right: Tensor
    """This rank's Q."""


class PowerSgdReducer:
    """Approximates matrices by products of ``rank``.

    A matrix with a value that is not finite becomes NaN as a whole, and its residual
    stays as it was before the step.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def reduce(self, bucket: Bucket, comm: Communicator) -> None:
        """Average P together with the uncompressed parameters, then Q."""
        matrices, others = [], []
        for param in bucket.parameters:
            if self._is_compressed(param):
                matrices.append(self._begin(param, bucket))
            else:
                part = bucket.out[param.span]
                add(part, bucket.residual(param), part)
                others.append(param)
        parts = [m.left for m in matrices]
        parts += [bucket.out[param.span] for param in others]
        means = _average(parts, comm)
        for param, mean in zip(others, means[len(matrices) :], strict=True):
            add(mean, None, bucket.out[param.span])
            if bucket.new_residual is not None:
                bucket.new_residual[param.span].zero_()
        if matrices:
            for matrix, left in zip(matrices, means[: len(matrices)], strict=True):
                _compute_right(matrix, left)
            rights = _average([m.right for m in matrices], comm)
            for matrix, right in zip(matrices, rights, strict=True):
                _finish(matrix, right, bucket, comm)

    def _is_compressed(self, param: ParameterSlice) -> bool:
        rows, columns = low_rank.matrix_shape(param.shape)
        return low_rank.is_worthwhile(rows, columns, self._rank)

    def _begin(self, param: ParameterSlice, bucket: Bucket) -> _Matrix:
        """Add the residual to the gradient and compute this rank's P."""
        rows, columns = low_rank.matrix_shape(param.shape)
        total = bucket.out[param.span].view(rows, columns)
        residual = bucket.residual(param)
        more = None if residual is None else residual.view(rows, columns)
        basis = self._basis(param, columns, bucket).to(total.device)
        left = low_rank.add_and_multiply(total, more, basis)
        return _Matrix(param, total, left, left)

    def _basis(self, param: ParameterSlice, columns: int, bucket: Bucket) -> Tensor:
        kept = bucket.state.get(BASIS, param.name)
        if kept is None:
            seed = bucket.derive_seed(param.name)
            return torch.from_numpy(low_rank.initial_basis(seed, columns, self._rank))
        if kept.shape != (columns, self._rank):
            text = f"{param.name!r} needs a basis of {(columns, self._rank)}"
            raise ConfigError(
                f"compression: {text}, not {tuple(kept.shape)}: call reset(), or load "
                "the state of this model"
            )
        return kept


def _average(parts: Sequence[Tensor], comm: Communicator) -> list[Tensor]:
    """Return the mean of each part, flat; all travel in one message."""
    message = torch.cat([part.reshape(-1) for part in parts])
    comm.average(message)
    return list(torch.split(message, [part.numel() for part in parts]))


def _compute_right(matrix: _Matrix, left: Tensor) -> None:
    """Compute this rank's Q from the mean of P."""
    columns = _host(left).reshape(matrix.left.shape)
    if np.isfinite(columns).all():
        columns = low_rank.orthonormalize(columns)
        columns = low_rank.round_to_12_bits(columns, tiny=low_rank.TINY_LEFT)
    matrix.left = torch.from_numpy(columns).to(left.device)
    matrix.right = low_rank.multiply_transposed(matrix.total, matrix.left)


def _finish(matrix: _Matrix, right: Tensor, bucket: Bucket, comm: Communicator) -> None:
    """Compute the mean of M, the residual and the next basis from the mean of Q."""
    param, total = matrix.param, matrix.total
    new_residual = None
    if bucket.new_residual is not None:
        new_residual = bucket.new_residual[param.span].view(total.shape)
    exact = _host(right).reshape(matrix.right.shape)
    if not np.isfinite(exact).all():  # on all ranks alike
        total.fill_(torch.nan)
        if new_residual is not None:
            old = bucket.residual(param)
            new_residual.copy_(
                new_residual.zero_() if old is None else old.view(total.shape)
            )
        return
    rounded = low_rank.round_to_12_bits(exact, tiny=low_rank.TINY_RIGHT)
    if comm.rank == 0:
        rounding = comm.size * (rounded - exact)
        matrix.right += torch.from_numpy(rounding).to(total.device)
    mean = torch.from_numpy(rounded).to(total.device)
    low_rank.apply_product(total, matrix.left, matrix.right, mean, new_residual)
    basis = low_rank.next_basis(rounded, bucket.derive_seed(param.name))
    bucket.state.stage(BASIS, param.name, torch.from_numpy(basis))


def _host(tensor: Tensor) -> Array:
    return as_array(tensor.cpu().contiguous())
