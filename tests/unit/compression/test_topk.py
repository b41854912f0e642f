"""Top-k selection, exact and by a sampled threshold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from ringleader.compression.topk import (
    SAMPLE,
    SLACK,
    _on_device,
    topk_count,
    topk_indices,
)

LONG = 5 * SAMPLE + 3
COUNT = LONG // 100


def noise(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def sizes_of(values: Tensor, indices: Tensor) -> list[float]:
    return sorted(values[indices].abs().tolist(), reverse=True)


@pytest.mark.parametrize("choose", [topk_indices, _on_device])
@pytest.mark.parametrize(
    ("total", "count"), [(1, 1), (7, 3), (7, 7), (1000, 10), (70_000, 700)]
)
def test_exactly_the_largest(
    choose: Callable[..., Tensor], total: int, count: int
) -> None:
    values = noise(total)
    indices = choose(values, count, exact=True, offset=0)
    wanted = torch.sort(values.abs(), descending=True).values[:count].tolist()
    assert sizes_of(values, indices) == wanted
    assert indices.tolist() == sorted(indices.tolist())
    assert indices.dtype is torch.int64


@pytest.mark.parametrize("exact", [True, False])
def test_of_equal_values_as_many_as_asked_for(exact: bool) -> None:
    """A constant gradient: no threshold selects one per cent of it."""
    chosen = topk_indices(torch.ones(LONG), COUNT, exact=exact)
    assert len(chosen) == COUNT == len(set(chosen.tolist()))
    few = torch.zeros(100)
    few[::2] = torch.tensor([1.0, -1.0]).repeat(25)
    few[3] = 2
    assert topk_indices(few, 10, exact=True).tolist() == [
        0,
        2,
        3,
        4,
        6,
        8,
        10,
        12,
        14,
        16,
    ]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("choose", [topk_indices, _on_device])
def test_zeros_are_left_out(choose: Callable[..., Tensor], exact: bool) -> None:
    values = torch.zeros(LONG)
    assert len(choose(values, COUNT, exact=exact, offset=0)) == 0
    values[100:110] = 1e-30
    assert choose(values, COUNT, exact=exact, offset=0).tolist() == [*range(100, 110)]


@pytest.mark.parametrize("choose", [topk_indices, _on_device])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_sample_finds_about_as_many(
    choose: Callable[..., Tensor], scale: float
) -> None:
    values = noise(LONG) ** 3 * scale
    chosen = choose(values, COUNT, exact=False, offset=12345)
    assert COUNT / SLACK <= len(chosen) <= COUNT * SLACK
    others = torch.ones(LONG, dtype=torch.bool)
    others[chosen] = False
    assert values[others].abs().max() <= values[chosen].abs().min()


@pytest.mark.parametrize("choose", [topk_indices, _on_device])
def test_a_sample_that_was_misled_does_no_harm(choose: Callable[..., Tensor]) -> None:
    """Values with the period of the sample, which sees only one kind of them."""
    stride = LONG // SAMPLE
    values = noise(LONG)
    values[::stride] *= 1000
    for offset in range(stride):
        chosen = choose(values, COUNT, exact=False, offset=offset)
        assert COUNT / SLACK <= len(chosen) <= COUNT * SLACK
        assert (chosen % stride == 0).all()


def test_the_sample_begins_where_it_is_told() -> None:
    values = noise(LONG)
    stride = LONG // SAMPLE
    counts = {
        len(topk_indices(values, COUNT, exact=False, offset=i)) for i in range(stride)
    }
    assert len(counts) > 1
    assert len(topk_indices(values, COUNT, exact=False, offset=stride)) in counts


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("choose", [topk_indices, _on_device])
def test_what_is_not_finite_is_largest(
    choose: Callable[..., Tensor], exact: bool
) -> None:
    values = noise(LONG)
    odd = {5: torch.nan, 60: torch.inf, 70_000: -torch.inf, LONG - 1: -torch.nan}
    for index, value in odd.items():
        values[index] = value
    chosen = choose(values, COUNT, exact=exact, offset=1)
    assert odd.keys() <= set(chosen.tolist())
    assert len(chosen) <= COUNT * SLACK
    nothing_else = torch.full((LONG,), torch.nan)
    nothing_else[10] = 1
    for each in choose(nothing_else, COUNT, exact=exact, offset=1)[:COUNT].tolist():
        assert each != 10


@pytest.mark.parametrize(
    ("ratio", "total", "count"),
    [(0.01, 1000, 10), (0.01, 10, 1), (1.0, 10, 10), (1e-9, 5, 1), (0.999, 3, 3)],
)
def test_a_ratio_means_one_at_least(ratio: float, total: int, count: int) -> None:
    assert topk_count(ratio, total) == count


def test_numpy_stays_quiet() -> None:
    with np.errstate(all="raise"):
        topk_indices(torch.tensor([torch.nan, 1.0, torch.inf]), 1, exact=True)
