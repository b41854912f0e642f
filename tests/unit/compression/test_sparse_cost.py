"""The choice of the sparse algorithm by its bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ringleader.compression.sparse_cost import (
    ROUND_BYTES,
    SparseAlgorithm,
    all_gather_bytes,
    choose_sparse_algorithm,
    dense_bytes,
    expected_union,
    owned_ranges,
)
from ringleader.compression.sparse_format import BLOCK

LONG = 1 << 24
"""64 MiB of float32."""


@pytest.mark.parametrize(
    ("total", "share", "size", "overlap", "way"),
    [
        (LONG, 0.01, 2, None, SparseAlgorithm.ALL_GATHER),
        (LONG, 0.01, 4, None, SparseAlgorithm.ALL_GATHER),
        (
            LONG,
            0.01,
            4,
            0.25,
            SparseAlgorithm.REDUCE_SCATTER,
        ),  # all choose_sparse_algorithm the same
        (LONG, 0.01, 4, 0.5, SparseAlgorithm.REDUCE_SCATTER),
        (LONG, 0.01, 4, 0.9, SparseAlgorithm.ALL_GATHER),
        (LONG, 0.01, 2, 0.5, SparseAlgorithm.ALL_GATHER),  # of two, owners win nothing
        (LONG, 0.1, 8, None, SparseAlgorithm.REDUCE_SCATTER),
        (LONG, 0.5, 2, None, SparseAlgorithm.ALL_GATHER),
        (
            LONG,
            0.5,
            4,
            None,
            SparseAlgorithm.REDUCE_SCATTER,
        ),  # sums are dense, contributions not
        (LONG, 0.7, 2, None, SparseAlgorithm.DENSE),
        (LONG, 1.0, 4, None, SparseAlgorithm.DENSE),
        (1000, 0.01, 8, 0.125, SparseAlgorithm.ALL_GATHER),  # owners have more rounds
        (LONG, 0.01, 1, None, SparseAlgorithm.DENSE),  # alone, nothing travels
    ],
)
def test_the_fewest_bytes_win(
    total: int, share: float, size: int, overlap: float | None, way: SparseAlgorithm
) -> None:
    chosen, reason = choose_sparse_algorithm(
        total, int(share * total), size, overlap=overlap
    )
    assert chosen is way, reason


def test_what_has_been_chosen_is_not_sent_dense() -> None:
    assert choose_sparse_algorithm(LONG, LONG, 2)[0] is SparseAlgorithm.DENSE
    assert (
        choose_sparse_algorithm(LONG, LONG, 2, is_selected=True)[0]
        is SparseAlgorithm.REDUCE_SCATTER
    )


def test_one_per_cent_of_four_ranks_is_more_than_twenty_times_less() -> None:
    rounds = 2 * ROUND_BYTES
    dense = dense_bytes(LONG, 4) - rounds
    sparse = all_gather_bytes(LONG, LONG // 100, 4) - rounds
    assert dense == 1.5 * 4 * LONG
    assert dense / sparse > 33


def test_places_that_somebody_chooses() -> None:
    assert expected_union(100, 10, 1) == pytest.approx(10)
    assert expected_union(100, 10, 2) == pytest.approx(19)
    assert expected_union(100, 100, 3) == pytest.approx(100)
    assert expected_union(0, 0, 3) == 0


@pytest.mark.parametrize("total", [0, 1, BLOCK, BLOCK + 1, 10 * BLOCK, LONG + 17])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_place_has_one_owner(total: int, size: int) -> None:
    parts = owned_ranges(total, size)
    assert len(parts) == size
    assert parts[0][0] == 0
    assert parts[-1][1] == total
    for (_, end), (begin, _) in pairwise(parts):
        assert end == begin
        assert begin % BLOCK == 0 or begin == total
