"""Means of differences by tokens, beside float64."""

from __future__ import annotations

import numpy as np

from ringleader.rounds.round_mean import RoundMean


def test_tokens_are_the_weights_in_any_order() -> None:
    chance = np.random.default_rng(0)
    parts = [chance.standard_normal(1001).astype(np.float32) for _ in range(4)]
    tokens = [4096, 2048, 1024, 1024]
    exact = np.average(np.array(parts, np.float64), axis=0, weights=tokens)
    means = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        mean = RoundMean(1001)
        for i in order:
            mean.add(parts[i], tokens[i])
        means.append(mean.combine())
        assert np.abs(means[-1] - exact).max() < 1e-7
    assert np.array_equal(means[0], means[1])


def test_the_two_rules_differ_where_a_member_sent_nothing() -> None:
    both = np.array([3.0, 6.0, 0.0], np.float32), np.array([1.0, 0.0, 0.0], np.float32)
    found = {}
    for rule in ("all", "senders"):
        mean = RoundMean(3, rule)
        mean.add(both[0], 10)
        mean.add(both[1], 30)
        found[rule] = mean.combine().tolist()
    assert found == {"all": [1.5, 1.5, 0.0], "senders": [1.5, 6.0, 0.0]}


def test_nothing_is_zero() -> None:
    assert RoundMean(3).combine().tolist() == [0.0, 0.0, 0.0]
