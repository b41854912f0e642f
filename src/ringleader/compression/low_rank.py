"""Low-rank approximation of matrices: the arithmetic of PowerSGD.

One step of a power iteration: P = M Q is averaged and orthonormalized, Q = M' P is
averaged, and the mean of M is nearly P Q'. The Q of one step starts the next.

Machines of different kinds train together, and their matrix products differ in the last
bits. The results that each rank computes for itself must be the same on all ranks,
though. The orthonormal P is therefore computed with single additions, multiplications,
divisions and square roots in a fixed order, which every processor rounds alike. The
entries of P and of the averaged Q are then rounded to 12 bits, so that a product of two
of them is exact: it makes no difference whether a library fuses it with the following
addition, and any matrix product may compute P Q', two terms at a time. P and Q before
averaging may come from any library.

A matrix may be larger than all caches, so that passes over it dominate the time. All
work on one tile of it is done before the next tile is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import seeded_random
from ringleader.engine.arrays import Array, as_array

MIN_GAIN = 2
"""A matrix is sent as a product only if that halves its bytes: it costs a second round
and three passes over the matrix."""
DEPENDENT = 1e-10
"""A column is linearly dependent if its squared norm shrinks to this share when the
columns before it are subtracted: the rest is rounding error. float32 leaves 1e-14."""
TINY_LEFT, TINY_RIGHT = 2.0**-30, 2.0**-90
"""Smaller entries of P and Q become zero. The last bit of a product is then at least
2**-142, which float32 can represent. The dropped values are rounding errors of a unit
vector, or gradients of 1e-27."""
SINGLE_THREADED = 262_144
"""Multiplications that OpenBLAS does in one thread."""


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, columns): the first dimension, and the product of the others."""
    rows = shape[0] if shape else 1
    return rows, int(np.prod(shape[1:], dtype=np.int64))


def is_worthwhile(rows: int, columns: int, rank: int) -> bool:
    """Return whether a matrix of this shape is sent as a product of ``rank``."""
    return rows * columns >= MIN_GAIN * rank * (rows + columns)


def initial_basis(seed: int, columns: int, rank: int) -> Array:
    """Return a random Q of shape (columns, rank), the same on all ranks."""
    return seeded_random.uniform_signed(seed, columns * rank).reshape(columns, rank)


def next_basis(basis: Array, seed: int) -> Array:
    """Return the Q that starts the next step: ``basis`` with columns scaled to 1.

    Columns that are zero are drawn anew; they would stay zero forever.
    """
    largest = np.abs(basis).max(axis=0)
    is_zero = largest == 0
    scaled = basis / np.where(is_zero, np.float32(1), largest)
    return np.where(is_zero, initial_basis(seed, *basis.shape), scaled)


def orthonormalize(columns: Array) -> Array:
    """Return orthonormal columns, computed in float64; dependent ones become zero."""
    rows = np.ascontiguousarray(columns.T, dtype=np.float64)  # one column after another
    before = _pairwise_sum(rows * rows)
    for j in range(len(rows)):
        square = _pairwise_sum(rows[j] * rows[j])
        if square <= DEPENDENT * before[j]:
            rows[j] = 0
            continue
        rows[j] /= np.sqrt(square)
        later = rows[j + 1 :]
        later -= _pairwise_sum(later * rows[j])[:, None] * rows[j]
    return np.ascontiguousarray(rows.T, dtype=np.float32)


def _pairwise_sum(products: Array) -> Array:
    """Sum along the last axis by halves, in an order that only the length determines.

    Overwrites ``products``.
    """
    length = products.shape[-1]
    while length > 1:
        half = (length + 1) // 2
        products[..., : length - half] += products[..., half:length]
        length = half
    return products[..., 0] if length else products.sum(axis=-1)


def round_to_12_bits(values: Array, *, tiny: float) -> Array:
    """Round to 12 bits, and to zero below ``tiny``: products are then exact."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x800)) & np.uint32(0xFFFFF000)).view(np.float32)
    return np.where(np.abs(rounded) < tiny, np.float32(0), rounded)


def add_and_multiply(matrix: Tensor, more: Tensor | None, basis: Tensor) -> Tensor:
    """Add ``more`` to M in place and return M Q; contiguous float32, any device."""
    if not matrix.is_cpu:
        if more is not None:
            matrix += more
        return matrix @ basis
    whole, q = _as_matrix(matrix), _at_least_two(_as_matrix(basis))
    added = None if more is None else _as_matrix(more)
    result = np.zeros((len(whole), q.shape[1]), np.float32)
    for rows, columns in _tiles(whole.shape, q.shape[1]):
        tile = whole[rows, columns]
        if added is not None:
            np.add(tile, added[rows, columns], out=tile)
        result[rows] += tile @ q[columns]
    return torch.from_numpy(np.ascontiguousarray(result[:, : basis.shape[1]]))


def multiply_transposed(matrix: Tensor, basis: Tensor) -> Tensor:
    """Return M' P; contiguous float32, any device."""
    if not matrix.is_cpu:
        return matrix.t() @ basis
    whole, p = _as_matrix(matrix), _at_least_two(_as_matrix(basis))
    result = np.zeros((whole.shape[1], p.shape[1]), np.float32)
    for rows, columns in _tiles(whole.shape, p.shape[1]):
        result[columns] += whole[rows, columns].T @ p[rows]
    return torch.from_numpy(np.ascontiguousarray(result[:, : basis.shape[1]]))


def _tiles(shape: tuple[int, ...], rank: int) -> Iterator[tuple[slice, slice]]:
    """Yield tiles whose product with ``rank`` columns numpy computes in our thread.

    OpenBLAS wakes threads for larger products, which compete with those of backward().
    """
    room = max(4, SINGLE_THREADED // rank)
    width = min(shape[1], room // 2)
    height = max(2, room // max(1, width))
    for i in range(0, shape[0], height):
        for j in range(0, shape[1], width):
            yield slice(i, i + height), slice(j, j + width)


def _at_least_two(columns: Array) -> Array:
    """Pad one column to two: OpenBLAS uses threads sooner for a vector."""
    if columns.shape[1] > 1:
        return columns
    return np.pad(columns, ((0, 0), (0, 1)))


def _as_matrix(tensor: Tensor) -> Array:
    return as_array(tensor).reshape(tensor.shape)


def apply_product(
    matrix: Tensor,
    left: Tensor,
    mine: Tensor,
    mean: Tensor,
    new_residual: Tensor | None,
) -> None:
    """Compute new_residual = M - P Q' with Q = ``mine``, then M = P Q' with ``mean``.

    P and the mean are rounded to 12 bits, so M has the same bits on all machines.
    """
    if not matrix.is_cpu:
        if new_residual is not None:
            torch.addmm(matrix, left, mine.t(), alpha=-1, out=new_residual)
        _multiply(left, mean, matrix)
        return
    whole, p = _as_matrix(matrix), _as_matrix(left)
    q = np.ascontiguousarray(_as_matrix(mean).T)
    own = np.ascontiguousarray(_as_matrix(mine).T)
    rest = None if new_residual is None else _as_matrix(new_residual)
    term = np.empty(0, np.float32)
    for rows, columns in _tiles(whole.shape, max(2, len(q))):
        tile = whole[rows, columns]
        if term.shape != tile.shape:  # the first tile, and those at the edges
            term = np.empty_like(tile)
        if rest is not None:
            np.matmul(p[rows], own[:, columns], out=term)
            np.subtract(tile, term, out=rest[rows, columns])
        np.matmul(p[rows, :2], q[:2, columns], out=tile)
        for j in range(2, len(q), 2):
            np.matmul(p[rows, j : j + 2], q[j : j + 2, columns], out=term)
            np.add(tile, term, out=tile)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Compute out = P Q' on a device, whose own products may be less exact."""
    out.zero_()
    for j in range(0, left.shape[1], 2):
        pair = left[:, j : j + 1] * right[:, j]
        if j + 1 < left.shape[1]:
            pair += left[:, j + 1 : j + 2] * right[:, j + 1]
        out += pair
