"""Matrices as products of two thin ones: the arithmetic of PowerSGD.

A step of a power iteration: P = M Q is averaged and made orthonormal, Q = M' P is
averaged, and the mean of M is nearly P Q'. The Q of one step begins the next.

Machines of different kinds train together, and their matrix products differ in the
last bits. What each rank computes for itself must be the same on all, though. The
orthonormal P is made of single additions, multiplications, divisions and roots in a
fixed order, which every processor rounds alike. The entries of P and of the averaged Q
are then shortened to 12 bits, so that a product of two of them is exact: whether a
library fuses it with the addition that follows makes no difference any more, and
whatever multiplies fastest may make P Q', two terms at a time. What is averaged
afterwards, P and Q, may come from any library.

A matrix may be larger than all caches, so passes over it are what takes time: what is
done with one part of it is done before the next part is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import chance
from ringleader.engine.arrays import Array, as_array

MIN_GAIN = 2
"""A matrix is sent as a product only if that halves its bytes: it costs a second round
and three passes over the matrix."""
DEPENDENT = 1e-10
"""A column whose square is left with this share of itself, after the columns before it
were subtracted, is rounding error: float32 leaves 1e-14."""
TINY_LEFT, TINY_RIGHT = 2.0**-30, 2.0**-90
"""Below, entries of P and Q are zero. The last bit of a product is then at least
2**-142, which float32 can hold; and what is lost is rounding error of a unit vector, or
a gradient of 1e-27."""
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


def shortened(values: Array, *, tiny: float) -> Array:
    """Rounded to 12 bits, and below ``tiny`` to zero: then products are exact."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x800)) & np.uint32(0xFFFFF000)).view(np.float32)
    return np.where(np.abs(rounded) < tiny, np.float32(0), rounded)


def add_and_times(matrix: Tensor, more: Tensor | None, basis: Tensor) -> Tensor:
    """M += ``more`` in place, and M Q; contiguous float32 on any device."""
    if not matrix.is_cpu:
        if more is not None:
            matrix += more
        return matrix @ basis
    whole, q = _grid(matrix), _at_least_two(_grid(basis))
    added = None if more is None else _grid(more)
    result = np.zeros((len(whole), q.shape[1]), np.float32)
    for rows, columns in _tiles(whole.shape, q.shape[1]):
        tile = whole[rows, columns]
        if added is not None:
            np.add(tile, added[rows, columns], out=tile)
        result[rows] += tile @ q[columns]
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


def settle(
    matrix: Tensor, left: Tensor, mine: Tensor, mean: Tensor, held: Tensor | None
) -> None:
    """held = M - P Q' with ``mine`` as Q, then M = P Q' with the ``mean``, in place.

    P and the mean are shortened, so M has the same bits on every kind of machine.
    """
    if not matrix.is_cpu:
        if held is not None:
            torch.addmm(matrix, left, mine.t(), alpha=-1, out=held)
        _multiply(left, mean, matrix)
        return
    whole, p, q = _grid(matrix), _grid(left), np.ascontiguousarray(_grid(mean).T)
    own = np.ascontiguousarray(_grid(mine).T)
    rest = None if held is None else _grid(held)
    term = np.empty(0, np.float32)
    for rows, columns in _tiles(whole.shape, max(2, len(q))):
        tile = whole[rows, columns]
        if term.shape != tile.shape:  # the first, and those at the edges
            term = np.empty_like(tile)
        if rest is not None:
            np.matmul(p[rows], own[:, columns], out=term)
            np.subtract(tile, term, out=rest[rows, columns])
        np.matmul(p[rows, :2], q[:2, columns], out=tile)
        for j in range(2, len(q), 2):
            np.matmul(p[rows, j : j + 2], q[j : j + 2, columns], out=term)
            np.add(tile, term, out=tile)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """``out`` = P Q' as above, on a device, whose own products may be less exact."""
    out.zero_()
    for j in range(0, left.shape[1], 2):
        pair = left[:, j : j + 1] * right[:, j]
        if j + 1 < left.shape[1]:
            pair += left[:, j + 1 : j + 2] * right[:, j + 1]
        out += pair
