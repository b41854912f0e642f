"""Matrices as products of two thin ones: the arithmetic of PowerSGD.

A step of a power iteration: P = M Q is averaged and made orthonormal, Q = M' P is
averaged, and the mean of M is nearly P Q'. The Q of one step begins the next.

Machines of different kinds train together, and their matrix products differ in the
last bits. So what each rank computes for itself and must be the same on all, the
orthonormal P and the product P Q', is made of single additions, multiplications,
divisions and roots in a fixed order, which every processor rounds alike. What is
averaged afterwards, P and Q, may come from any library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import chance
from ringleader.engine.kernel import GRAIN, Array, as_array

MIN_GAIN = 2
"""A matrix is sent as a product only if that halves its bytes: it costs a second round
and three passes over the matrix."""
DEPENDENT = 1e-10
"""A column whose square is left with this share of itself, after the columns before it
were subtracted, is rounding error: float32 leaves 1e-14."""
SINGLE = 262_144
"""Multiplications that OpenBLAS does in one thread."""


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns): the first dimension, and all others together."""
    rows = shape[0] if shape else 1
    return rows, int(np.prod(shape[1:], dtype=np.int64))


def is_worth_it(rows: int, columns: int, rank: int) -> bool:
    """Whether a matrix of this shape is sent as a product of ``rank``."""
    return rows * columns >= MIN_GAIN * rank * (rows + columns)


def fresh_basis(start: int, columns: int, rank: int) -> Array:
    """A Q to begin with: (columns, rank), random, the same on all ranks."""
    return chance.signed(start, columns * rank).reshape(columns, rank)


def next_basis(basis: Array, start: int) -> Array:
    """``basis`` to begin the next step with: its columns, scaled to a largest of 1.

    Columns that became zero are begun anew; they would stay so forever.
    """
    largest = np.abs(basis).max(axis=0)
    dead = largest == 0
    scaled = basis / np.where(dead, np.float32(1), largest)
    return np.where(dead, fresh_basis(start, *basis.shape), scaled)


def orthonormal(columns: Array) -> Array:
    """The columns made orthonormal, in float64; dependent ones become zero."""
    rows = np.ascontiguousarray(columns.T, dtype=np.float64)  # one column after another
    before = _folded(rows * rows)
    for j in range(len(rows)):
        square = _folded(rows[j] * rows[j])
        if square <= DEPENDENT * before[j]:
            rows[j] = 0
            continue
        rows[j] /= np.sqrt(square)
        later = rows[j + 1 :]
        later -= _folded(later * rows[j])[:, None] * rows[j]
    return np.ascontiguousarray(rows.T, dtype=np.float32)


def _folded(products: Array) -> Array:
    """Sums along the last axis, by halves: the order depends on the length alone."""
    length = products.shape[-1]
    while length > 1:
        half = (length + 1) // 2
        products[..., : length - half] += products[..., half:length]
        length = half
    return products[..., 0] if length else products.sum(axis=-1)


def times(matrix: Tensor, basis: Tensor) -> Tensor:
    """M Q, of contiguous float32 on any device."""
    if not matrix.is_cpu:
        return matrix @ basis
    whole, q = _grid(matrix), _at_least_two(_grid(basis))
    result = np.zeros((len(whole), q.shape[1]), np.float32)
    for rows, columns in _tiles(whole.shape, q.shape[1]):
        result[rows] += whole[rows, columns] @ q[columns]
    return torch.from_numpy(np.ascontiguousarray(result[:, : basis.shape[1]]))


def transposed_times(matrix: Tensor, basis: Tensor) -> Tensor:
    """M' P, likewise."""
    if not matrix.is_cpu:
        return matrix.t() @ basis
    whole, p = _grid(matrix), _at_least_two(_grid(basis))
    result = np.zeros((whole.shape[1], p.shape[1]), np.float32)
    for rows, columns in _tiles(whole.shape, p.shape[1]):
        result[columns] += whole[rows, columns].T @ p[rows]
    return torch.from_numpy(np.ascontiguousarray(result[:, : basis.shape[1]]))


def _tiles(shape: tuple[int, ...], rank: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a matrix whose product with ``rank`` columns numpy makes in our thread.

    OpenBLAS wakes threads for larger ones, and they fight with those of backward().
    """
    room = max(4, SINGLE // rank)
    width = min(shape[1], room // 2)
    height = max(2, room // max(1, width))
    for i in range(0, shape[0], height):
        for j in range(0, shape[1], width):
            yield slice(i, i + height), slice(j, j + width)


def _at_least_two(columns: Array) -> Array:
    """One column would be a product with a vector, which wakes threads much earlier."""
    if columns.shape[1] > 1:
        return columns
    return np.pad(columns, ((0, 0), (0, 1)))


def _grid(tensor: Tensor) -> Array:
    return as_array(tensor).reshape(tensor.shape)


def write_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = P Q', the same bits on every kind of machine."""
    # On the CPU by torch, which multiplies by a column twice as fast as numpy, in
    # pieces that it does not share among threads.
    piece = GRAIN if out.is_cpu else max(1, out.numel())
    width = max(1, min(out.shape[1], piece))
    height = max(1, piece // width)
    columns = [torch.split(left[:, j : j + 1], height) for j in range(left.shape[1])]
    across = torch.split(right.t().contiguous(), width, dim=1)
    for slab, rows in zip(torch.split(out, width, dim=1), across, strict=True):
        _write_slab(columns, rows, torch.split(slab, height))


def _write_slab(
    columns: Sequence[Sequence[Tensor]], rows: Tensor, tiles: Sequence[Tensor]
) -> None:
    """Each tile: the sum of columns times rows, one after the other."""
    scratch = torch.empty_like(tiles[0], memory_format=torch.contiguous_format)
    first, *others = rows.unbind()
    for i, tile in enumerate(tiles):
        torch.mul(columns[0][i], first, out=tile)
        term = scratch if len(scratch) == len(tile) else scratch[: len(tile)]
        for column, row in zip(columns[1:], others, strict=True):
            torch.mul(column[i], row, out=term)
            torch.add(tile, term, out=tile)  # two roundings, never one


def subtract_product(matrix: Tensor, left: Tensor, right: Tensor) -> None:
    """M -= P Q', in place: what a rank keeps for itself, so any library may do it."""
    if not matrix.is_cpu:
        matrix.addmm_(left, right.t(), alpha=-1)
        return
    whole, p = _grid(matrix), _grid(left)
    across = np.ascontiguousarray(_grid(right).T)
    for rows, columns in _tiles(whole.shape, max(2, len(across))):
        tile = whole[rows, columns]
        np.subtract(tile, p[rows] @ across[:, columns], out=tile)
