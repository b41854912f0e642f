"""Random numbers that are the same on all machines."""

from __future__ import annotations

import numpy as np
import pytest

from ringleader.compression import seeded_random


def test_the_numbers_are_these_for_all_time() -> None:
    """Machines with different versions of numpy must draw the same numbers."""
    start = seeded_random.derive_seed(7, 3, "layer.weight")
    assert start == 0xA5B50E458961DEB4
    assert seeded_random.random_uint64(start, 3).tolist() == [
        4086543091288679815,
        4325061896422465111,
        8681448963074853267,
    ]
    assert seeded_random.stratified_indices(start, 1000, 5).tolist() == [
        44,
        246,
        494,
        664,
        910,
    ]
    assert seeded_random.uniform_signed(start, 2).tolist() == [
        -0.5569361448287964,
        -0.5310759544372559,
    ]


def test_splitmix_is_what_its_authors_published() -> None:
    """The first numbers of the published generator, seeded with 1234567."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert seeded_random.random_uint64(1234567, 3).tolist() == wanted


@pytest.mark.parametrize("other", [(8, 3, "w"), (7, 4, "w"), (7, 3, "v")])
def test_each_use_has_numbers_of_its_own(other: tuple[int, int, str]) -> None:
    mine = seeded_random.random_uint64(seeded_random.derive_seed(7, 3, "w"), 100)
    theirs = seeded_random.random_uint64(seeded_random.derive_seed(*other), 100)
    assert not np.any(mine == theirs)


@pytest.mark.parametrize(
    ("total", "count"), [(1, 1), (10, 3), (1000, 1000), (65537, 655), (7, 6)]
)
def test_indices_are_different_ascend_and_fit(total: int, count: int) -> None:
    indices = seeded_random.stratified_indices(5, total, count)
    assert len(indices) == count
    assert indices[0] >= 0
    assert indices[-1] < total
    assert np.all(np.diff(indices) > 0)


def test_every_index_is_drawn_equally_often() -> None:
    """2000 draws of 10 out of 103: each is expected 194 times, give or take 14."""
    times = np.zeros(103)
    for step in range(2000):
        times[
            seeded_random.stratified_indices(
                seeded_random.derive_seed(1, step, "w"), 103, 10
            )
        ] += 1
    assert np.all(np.abs(times - 20000 / 103) < 5 * 14)


def test_signed_numbers_fill_their_range_evenly() -> None:
    values = seeded_random.uniform_signed(1, 100_000)
    assert values.dtype == np.float32
    assert -1 <= values.min() < -0.999
    assert 0.999 < values.max() <= 1
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1 / np.sqrt(3)) < 0.01
