"""The arithmetic of PowerSGD, beside float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringleader.compression import lowrank
from ringleader.engine.kernel import Array


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 1), (5, 2), (64, 4), (1000, 3), (513, 16)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_columns_become_orthonormal(shape: tuple[int, int], scale: float) -> None:
    columns = noise(*shape) * np.float32(scale)
    basis = lowrank.orthonormal(columns)
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
    basis = lowrank.orthonormal(columns).astype(np.float64)
    squares = np.diag(basis.T @ basis)
    assert squares == pytest.approx([1, 0, 1, 0], abs=1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1000, 1024, 4097])
def test_sums_by_halves_are_sums(length: int) -> None:
    values = noise(3, length).astype(np.float64)
    wanted = values.sum(axis=1)
    assert lowrank._folded(values.copy()) == pytest.approx(wanted, abs=1e-9)


def test_the_order_of_a_sum_is_known() -> None:
    """(a + c + e) + (b + d): halves that are folded onto each other."""
    a, b, c, d, e = 1.0, 2.0**-53, -1.0, 3.0, 2.0**-53
    values = np.array([[a, b, c, d, e]])
    # [a + d, b + e, c], then [a + d + c, b + e], then their sum
    assert lowrank._folded(values).tolist() == [((a + d) + c) + (b + e)]


@pytest.mark.parametrize("shape", [(3, 5), (700, 300), (2, 200_000), (1, 1)])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_products_are_those_of_float64(shape: tuple[int, int], rank: int) -> None:
    rows, columns = shape
    left, right = noise(rows, rank), noise(columns, rank, seed=1)
    wanted = left.astype(np.float64) @ right.T.astype(np.float64)
    out = torch.empty(shape)
    lowrank.write_product(torch.from_numpy(left), torch.from_numpy(right), out)
    assert np.abs(out.numpy() - wanted).max() < 1e-5
    rest = torch.from_numpy(wanted.astype(np.float32))
    lowrank.subtract_product(rest, torch.from_numpy(left), torch.from_numpy(right))
    assert rest.abs().max() < 1e-5


def test_a_product_is_single_steps_in_order() -> None:
    """So that every kind of machine gets the same bits."""
    left, right = noise(40, 3), noise(50, 3, seed=1)
    out = torch.empty(40, 50)
    lowrank.write_product(torch.from_numpy(left), torch.from_numpy(right), out)
    terms = [np.multiply.outer(left[:, j], right[:, j]) for j in range(3)]
    wanted = (terms[0] + terms[1]) + terms[2]
    assert np.array_equal(out.numpy(), wanted)


def test_a_matrix_of_low_rank_is_found_by_one_iteration() -> None:
    matrix = noise(60, 2) @ noise(2, 40, seed=1)
    start = torch.from_numpy(lowrank.fresh_basis(5, 40, 2))
    whole = torch.from_numpy(matrix)
    left = torch.from_numpy(lowrank.orthonormal(lowrank.times(whole, start).numpy()))
    right = lowrank.transposed_times(whole, left)
    out = torch.empty(60, 40)
    lowrank.write_product(left, right, out)
    assert np.abs(out.numpy() - matrix).max() < 1e-5


def test_the_next_basis_is_scaled_and_alive() -> None:
    basis = noise(30, 3) * np.array([1e-20, 0, 1e20], np.float32)
    after = lowrank.next_basis(basis, start=9)
    assert np.abs(after).max(axis=0)[[0, 2]] == pytest.approx([1, 1])
    fresh = lowrank.fresh_basis(9, 30, 3)
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
    assert lowrank.matrix_shape(shape) == matrix
    assert lowrank.is_worth_it(*matrix, rank=2) == worth
