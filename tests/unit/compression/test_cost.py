"""Which sparse exchange is cheapest."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ringleader.compression.cost import (
    ROUND_BYTES,
    Way,
    choose,
    dense_bytes,
    everything_bytes,
    ranges,
    union,
)
from ringleader.compression.entries import BLOCK

LONG = 1 << 24
"""64 MiB of float32."""


@pytest.mark.parametrize(
    ("total", "share", "size", "overlap", "way"),
    [
        (LONG, 0.01, 2, None, Way.EVERYTHING),
        (LONG, 0.01, 4, None, Way.EVERYTHING),
        (LONG, 0.01, 4, 0.25, Way.OWNERS),  # all choose the same
        (LONG, 0.01, 4, 0.5, Way.OWNERS),
        (LONG, 0.01, 4, 0.9, Way.EVERYTHING),
        (LONG, 0.01, 2, 0.5, Way.EVERYTHING),  # of two, owners win nothing
        (LONG, 0.1, 8, None, Way.OWNERS),
        (LONG, 0.5, 2, None, Way.EVERYTHING),
        (LONG, 0.5, 4, None, Way.OWNERS),  # sums are dense, contributions not
        (LONG, 0.7, 2, None, Way.DENSE),
        (LONG, 1.0, 4, None, Way.DENSE),
        (1000, 0.01, 8, 0.125, Way.EVERYTHING),  # owners have more rounds
        (LONG, 0.01, 1, None, Way.DENSE),  # alone, nothing travels
    ],
)
def test_the_fewest_bytes_win(
    total: int, share: float, size: int, overlap: float | None, way: Way
) -> None:
    chosen, reason = choose(total, int(share * total), size, overlap=overlap)
    assert chosen is way, reason


def test_what_has_been_chosen_is_not_sent_dense() -> None:
    assert choose(LONG, LONG, 2)[0] is Way.DENSE
    assert choose(LONG, LONG, 2, is_chosen=True)[0] is Way.OWNERS


def test_one_per_cent_of_four_ranks_is_more_than_twenty_times_less() -> None:
    rounds = 2 * ROUND_BYTES
    dense = dense_bytes(LONG, 4) - rounds
    sparse = everything_bytes(LONG, LONG // 100, 4) - rounds
    assert dense == 1.5 * 4 * LONG
    assert dense / sparse > 33


def test_places_that_somebody_chooses() -> None:
    assert union(100, 10, 1) == pytest.approx(10)
    assert union(100, 10, 2) == pytest.approx(19)
    assert union(100, 100, 3) == pytest.approx(100)
    assert union(0, 0, 3) == 0


@pytest.mark.parametrize("total", [0, 1, BLOCK, BLOCK + 1, 10 * BLOCK, LONG + 17])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_place_has_one_owner(total: int, size: int) -> None:
    parts = ranges(total, size)
    assert len(parts) == size
    assert parts[0][0] == 0
    assert parts[-1][1] == total
    for (_, end), (begin, _) in pairwise(parts):
        assert end == begin
        assert begin % BLOCK == 0 or begin == total
