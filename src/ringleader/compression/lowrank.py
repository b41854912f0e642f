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

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import chance
from ringleader.engine.kernel import Array, as_array

MIN_GAIN = 2
"""A matrix is sent as a product only if that halves its bytes: it costs a second round
and three passes over the matrix."""
DEPENDENT = 1e-10
"""A column whose square is left with this share of itself, after the columns before it
were subtracted, is rounding error: float32 leaves 1e-14."""
PIECE = 65536
"""Values of a product made together; they stay in the second-level cache."""


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
    # numpy's, because torch would start threads of its own in the engine's thread.
    return torch.from_numpy(_grid(matrix) @ _grid(basis))


def transposed_times(matrix: Tensor, basis: Tensor) -> Tensor:
    """M' P, likewise."""
    if not matrix.is_cpu:
        return matrix.t() @ basis
    return torch.from_numpy(_grid(matrix).T @ _grid(basis))


def _grid(tensor: Tensor) -> Array:
    return as_array(tensor).reshape(tensor.shape)


def write_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = P Q', the same bits on every kind of machine."""
    if not out.is_cpu:
        torch.mul(left[:, :1], right[:, 0], out=out)
        for j in range(1, left.shape[1]):
            out += left[:, j : j + 1] * right[:, j]  # two roundings, never one
        return
    _write_on_host(_grid(left), np.ascontiguousarray(_grid(right).T), _grid(out))


def _write_on_host(p: Array, q_rows: Array, out: Array) -> None:
    step = max(1, PIECE // max(1, out.shape[1]))
    scratch = np.empty((min(step, len(out)), out.shape[1]), np.float32)
    for i in range(0, len(out), step):
        piece, column = out[i : i + step], p[i : i + step]
        np.multiply(column[:, :1], q_rows[0], out=piece)
        for j in range(1, len(q_rows)):
            term = scratch[: len(piece)]
            np.multiply(column[:, j : j + 1], q_rows[j], out=term)
            np.add(piece, term, out=piece)


def subtract_product(matrix: Tensor, left: Tensor, right: Tensor) -> None:
    """M -= P Q', in place: what a rank keeps for itself, so any library may do it."""
    if not matrix.is_cpu:
        matrix.addmm_(left, right.t(), alpha=-1)
        return
    whole, p, q = _grid(matrix), _grid(left), _grid(right)
    step = max(1, PIECE // max(1, whole.shape[1]))
    for i in range(0, len(whole), step):
        whole[i : i + step] -= p[i : i + step] @ q.T
