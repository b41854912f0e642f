"""Measuring links: everybody meets everybody, and one bad moment decides nothing."""

from __future__ import annotations

import pytest
import torch

from ringleader.groups.measure_links import _partners, _smooth


@pytest.mark.parametrize("size", range(2, 18))
def test_everybody_meets_everybody_exactly_once(size: int) -> None:
    meetings = [_partners(rank, size) for rank in range(size)]
    for rank, partners in enumerate(meetings):
        assert sorted(partners) == [r for r in range(size) if r != rank]
        for partner in partners:
            assert rank in meetings[partner]


def test_links_about_as_fast_as_most_count_as_equal_and_slow_ones_do_not() -> None:
    size, head = 3, [0.0, 2.0, 0.0, 1e-5, 1e-5, 1e-5]
    speeds = [[1.0, 120.0, 83.0], [115.0, 1.0, 120.0], [120.0, 20.0, 1.0]]
    rows = [torch.tensor(head + row, dtype=torch.float64) for row in speeds]
    _smooth(rows, size)
    got = [row[3 + size :].tolist() for row in rows]
    assert (got[0][2], got[1][0]) == (got[0][1], got[0][1]), "noise is evened out"
    assert got[2][1] == 20.0, "a link that really is slow stays slow"
