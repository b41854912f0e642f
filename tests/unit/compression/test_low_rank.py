"""The arithmetic of PowerSGD, compared with float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ringleader.compression import low_rank
from ringleader.engine.arrays import Array


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 1), (5, 2), (64, 4), (1000, 3), (513, 16)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_columns_become_orthonormal(shape: tuple[int, int], scale: float) -> None:
    columns = noise(*shape) * np.float32(scale)
    basis = low_rank.orthonormalize(columns)
    assert basis.dtype == np.float32
    wide = basis.astype(np.float64)
    assert np.abs(wide.T @ wide - np.eye(shape[1])).max() < 1e-6
    # They span the same: nothing of the columns is left beside them.
    rest = columns - wide @ (wide.T @ columns)
    assert np.abs(rest).max() < 1e-5 * scale


def test_dependent_columns_become_zero() -> None:
    columns = noise(50, 4)
    columns[:, 1] = 2 * columns[:, 0]
    columns[:, 3] = 0
    basis = low_rank.orthonormalize(columns).astype(np.float64)
    squares = np.diag(basis.T @ basis)
    assert squares == pytest.approx([1, 0, 1, 0], abs=1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1000, 1024, 4097])
def test_sums_by_halves_are_sums(length: int) -> None:
    values = noise(3, length).astype(np.float64)
    wanted = values.sum(axis=1)
    assert low_rank._pairwise_sum(values.copy()) == pytest.approx(wanted, abs=1e-9)


def test_the_order_of_a_sum_is_known() -> None:
    """The order of additions is (a + c + e) + (b + d)."""
    a, b, c, d, e = 1.0, 2.0**-53, -1.0, 3.0, 2.0**-53
    values = np.array([[a, b, c, d, e]])
    # [a + d, b + e, c], then [a + d + c, b + e], then their sum
    assert low_rank._pairwise_sum(values).tolist() == [((a + d) + c) + (b + e)]


def thin(rows: int, rank: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(
        low_rank.round_to_12_bits(noise(rows, rank, seed=seed), tiny=0)
    )


@pytest.mark.parametrize("shape", [(3, 5), (700, 300), (2, 200_000), (1, 1)])
@pytest.mark.parametrize("rank", [1, 2, 4, 5])
def test_products_are_those_of_float64(shape: tuple[int, int], rank: int) -> None:
    rows, columns = shape
    left, mean = thin(rows, rank), thin(columns, rank, seed=1)
    mine = torch.from_numpy(noise(columns, rank, seed=2))
    whole = torch.from_numpy(noise(rows, columns, seed=3))
    new_residual = torch.empty(shape)
    rest = whole.double() - left.double() @ mine.t().double()
    low_rank.apply_product(whole, left, mine, mean, new_residual)
    assert (whole - left.double() @ mean.t().double()).abs().max() < 1e-5
    assert (new_residual - rest).abs().max() < 1e-5


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("scale", [1.0, 1e-13, 1e-26, 1e30])
def test_a_product_has_the_same_bits_however_it_is_made(
    rank: int, scale: float
) -> None:
    """A library may fuse and reorder; compared with single steps and with float64."""
    chance = np.random.default_rng(rank)
    sizes = np.exp2(chance.integers(-29, 1, (300, rank)))
    left = low_rank.round_to_12_bits(noise(300, rank) * sizes, tiny=low_rank.TINY_LEFT)
    right = noise(400, rank, seed=1) * np.float32(scale)
    right = low_rank.round_to_12_bits(right, tiny=low_rank.TINY_RIGHT)
    p, q = torch.from_numpy(left), torch.from_numpy(right)
    by_library, by_steps = torch.empty(300, 400), torch.empty(300, 400)
    low_rank.apply_product(by_library, p, q, q, None)
    low_rank._multiply(p, q, by_steps)
    assert torch.equal(by_library, by_steps)
    total = np.zeros((300, 400), np.float32)
    for j in range(0, rank, 2):
        pair = left[:, j : j + 2].astype(float) @ right[:, j : j + 2].astype(float).T
        total = total + pair.astype(np.float32)
    assert np.array_equal(by_library.numpy(), total)


def test_short_numbers_are_near_and_few() -> None:
    values = noise(50, 40) * np.float32(1e-9)
    short = low_rank.round_to_12_bits(values, tiny=1e-10)
    is_tiny = np.abs(values) < 1e-10
    assert not short[is_tiny & (np.abs(values) < 0.99e-10)].any()
    kept = short != 0
    assert np.abs(short / values - 1)[kept].max() <= 2.0**-12
    assert not (short.view(np.uint32) & 0xFFF).any()
    assert np.isnan(
        low_rank.round_to_12_bits(np.full(1, np.nan, np.float32), tiny=0)
    ).all()


def test_a_matrix_of_low_rank_is_found_by_one_iteration() -> None:
    matrix = noise(60, 2) @ noise(2, 40, seed=1)
    start = torch.from_numpy(low_rank.initial_basis(5, 40, 2))
    part = torch.from_numpy(noise(60, 40, seed=2))
    whole = torch.from_numpy(matrix) - part
    columns = low_rank.add_and_multiply(whole, part, start).numpy()
    assert np.abs(whole.numpy() - matrix).max() < 1e-5
    left = torch.from_numpy(low_rank.orthonormalize(columns))
    right = low_rank.multiply_transposed(whole, left)
    new_residual = torch.empty(60, 40)
    low_rank.apply_product(whole, left, right, right, new_residual)
    assert np.abs(whole.numpy() - matrix).max() < 1e-5
    assert new_residual.abs().max() < 1e-5


def test_the_next_basis_is_scaled_and_alive() -> None:
    basis = noise(30, 3) * np.array([1e-20, 0, 1e20], np.float32)
    after = low_rank.next_basis(basis, seed=9)
    assert np.abs(after).max(axis=0)[[0, 2]] == pytest.approx([1, 1])
    fresh = low_rank.initial_basis(9, 30, 3)
    assert np.array_equal(after[:, 1], fresh[:, 1])
    turned = after[:, 0] / basis[:, 0]
    assert turned == pytest.approx(np.full(30, turned[0]), rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "matrix", "worth"),
    [
        ((), (1, 1), False),
        ((1000,), (1000, 1), False),
        ((10, 10), (10, 10), True),
        ((8, 7), (8, 7), False),
        ((64, 32, 3, 3), (64, 288), True),
        ((100_000, 4), (100_000, 4), False),
    ],
)
def test_matrices_that_gain_little_are_left_alone(
    shape: tuple[int, ...], matrix: tuple[int, int], worth: bool
) -> None:
    assert low_rank.matrix_shape(shape) == matrix
    assert low_rank.is_worthwhile(*matrix, rank=2) == worth
