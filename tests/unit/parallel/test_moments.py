"""Merged moments of parts of a batch equal those of the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ringleader.parallel.moments import Moments, measure, merge

CUTS = [(40,), (20, 20), (1, 39), (10, 0, 1, 29), (0, 0, 40)]
"""The batch sizes of the ranks, 40 rows in total."""


def batch(dtype: torch.dtype, *, mean: float = 3.0, std: float = 2.0) -> Tensor:
    """Return deterministic rows of 5 channels."""
    noise = torch.randn(40, 5, 7, generator=torch.Generator().manual_seed(7))
    return (mean + std * noise.double()).to(dtype)


def merged(values: Tensor, cut: tuple[int, ...]) -> Moments:
    parts = torch.split(values, list(cut))
    return merge(torch.stack([measure(part).pack() for part in parts]))


def assert_near(got: Tensor, want: Tensor, tolerance: float) -> None:
    largest = float(want.abs().max())
    torch.testing.assert_close(
        got.double(), want, rtol=tolerance, atol=tolerance * largest
    )


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_merged_parts_have_the_moments_of_the_whole(
    cut: tuple[int, ...], dtype: torch.dtype
) -> None:
    values = batch(dtype)
    exact = values.double()

    got = merged(values, cut)

    tolerance = 1e-13 if dtype is torch.float64 else 1e-6
    assert float(got.count) == 40 * 7
    assert_near(got.mean(), exact.mean((0, 2)), tolerance)
    for correction in (0, 1):
        variance = exact.var((0, 2), correction=correction)
        assert_near(got.variance(correction=correction), variance, tolerance)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_mean_far_above_the_deviations_costs_no_digits(cut: tuple[int, ...]) -> None:
    values = batch(torch.float32, mean=1e4, std=1e-2)
    exact = values.double()
    want = exact.var((0, 2), correction=0)
    naive = values.square().mean((0, 2)) - values.mean((0, 2)).square()
    assert (naive / want - 1).abs().min() > 0.9, "the naive formula must fail here"

    got = merged(values, cut)

    assert_near(got.variance(), want, 1e-6)
    deviations = exact - exact.mean((0, 2), keepdim=True)
    assert_near(got.deviations(values), deviations, 1e-6)


def test_parts_with_different_means_add_to_the_variance() -> None:
    """Two constant batches: all variance is between them."""
    values = torch.cat((torch.full((1, 2), 10.0), torch.full((3, 2), 14.0)))

    got = merged(values, (1, 3))

    assert got.mean().tolist() == [13.0, 13.0]
    assert got.variance().tolist() == [3.0, 3.0]


def test_no_values_anywhere_give_zeros_not_nan() -> None:
    got = merged(torch.empty(0, 3), (0, 0))

    assert float(got.count) == 0
    assert got.mean().tolist() == got.variance(correction=1).tolist() == [0.0] * 3
