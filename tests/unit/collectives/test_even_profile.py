"""A profile of one rank predicts what the profile of all ranks does."""

from __future__ import annotations

import pytest

from ringleader.collectives.algorithm import algorithms
from ringleader.collectives.cost_model import Network, predict_s
from ringleader.collectives.even_profile import DEPTHS, even_profile
from ringleader.collectives.schedule_profile import profile


@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 12, 16, 17])
def test_one_rank_stands_for_all(algorithm: str, size: int) -> None:
    network = Network.unknown(size)
    all_ranks = profile("all_reduce", algorithm, size, 0, 2)
    one = even_profile(algorithm, size)
    assert one.depth == all_ranks.depth
    assert sum(one.sent) == pytest.approx(sum(all_ranks.sent))
    for num_bytes in (4, 100_000, 100_000_000):
        expected_s = predict_s(all_ranks, num_bytes, network)
        assert predict_s(one, num_bytes, network) == pytest.approx(expected_s)


def test_a_thousand_ranks_have_the_links_of_one() -> None:
    for algorithm in DEPTHS:
        assert len(even_profile(algorithm, 1024).links) <= 2 * 1023
