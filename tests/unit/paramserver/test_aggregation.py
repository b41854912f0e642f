"""Rules that combine the updates of a round, against references in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.server import aggregation
from ringleader.paramserver.server.aggregation import (
    Aggregation,
    HeldUpdates,
    trim_count,
)
from ringleader.paramserver.server.global_weights import GlobalWeights
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.quarantined_sources import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    SHARED_WAIT_S,
    QuarantinedSources,
    source_of,
)
from ringleader.paramserver.server.update_norms import MAX_RATIO, UpdateNorms

NAMES = ("w1", "w2", "w3", "w4", "w5", "w6")


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "_PIECE", 7)


def rows(workers: int) -> NDArray[np.float32]:
    chance = np.random.default_rng(workers)
    return chance.standard_normal((workers, 40)).astype(np.float32)


def combined(how: Aggregation, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    held = HeldUpdates(how)
    for name, vector in zip(NAMES, vectors, strict=False):
        held.add(name, Update(vector, vector[:3]), 8)
    found = held.combine()
    assert held.is_empty
    if not how.clip:  # buffers are clipped by their own norms
        np.testing.assert_array_equal(found.buffers, found.parameters[:3])
    return found.parameters


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 6])
def test_rules_give_what_float64_gives(workers: int) -> None:
    vectors = rows(workers)
    exact = np.sort(vectors.astype(np.float64), axis=0)
    cut = trim_count(workers)
    assert 2 * cut < workers
    half = workers // 2
    median = exact[half] if workers % 2 else (exact[half - 1] + exact[half]) / 2
    for rule, want in (
        ("median", median),
        ("trimmed", exact[cut : workers - cut].mean(axis=0)),
    ):
        found = combined(Aggregation(rule), vectors)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)


def test_one_worker_of_three_decides_nothing() -> None:
    vectors = rows(3)
    honest = vectors[:2].astype(np.float64)
    for lie in (1e30, -1e30, 0.0):
        vectors[2] = lie
        for rule in ("median", "trimmed"):
            found = combined(Aggregation(rule), vectors)
            assert (found >= honest.min(axis=0) - 1e-6).all()
            assert (found <= honest.max(axis=0) + 1e-6).all()


def test_norms_are_clipped_to_a_multiple_of_their_median() -> None:
    vectors = rows(4)
    vectors[3] *= 1e6
    exact = vectors.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1)
    limit = 2.0 * np.median(norms)
    scales = np.minimum(1.0, limit / norms)
    want = (exact * scales[:, None]).mean(axis=0)
    found = combined(Aggregation("mean", 2.0), vectors)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(found) < limit


def test_a_worker_with_several_shards_has_one_vote() -> None:
    vectors = rows(5)
    held = HeldUpdates(Aggregation("median"))
    none = np.zeros(0, np.float32)
    for name, samples, vector in (
        ("w1", 8, vectors[0]),
        ("eve", 8, vectors[1]),
        ("eve", 24, vectors[2]),
        ("eve", 8, vectors[3]),
        ("w2", 8, vectors[4]),
    ):
        held.add(name, Update(vector, none), samples)
    exact = vectors.astype(np.float64)
    eve = (8 * exact[1] + 24 * exact[2] + 8 * exact[3]) / 40
    want = np.median([exact[0], eve, exact[4]], axis=0)
    np.testing.assert_allclose(held.combine().parameters, want, rtol=1e-5, atol=1e-6)


def test_a_rule_changes_between_two_rounds_and_not_within_one() -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    weights = GlobalWeights(model, _plain_sgd, is_difference=False)
    none = np.zeros(0, np.float32)

    def play(values: tuple[float, ...]) -> float:
        before = float(model.weight.detach()[0, 0])
        for name, value in zip(NAMES, values, strict=False):
            weights.add(name, Update(np.full(2, value, np.float32), none), 1)
        weights.apply(1.0)
        return before - float(model.weight.detach()[0, 0])

    weights.add("w1", Update(np.full(2, 0.0, np.float32), none), 1)
    weights.use(Aggregation("median"))
    assert play((0.0, 6.0)) == pytest.approx(2.0)
    assert play((0.0, 1.0, 6.0)) == pytest.approx(1.0)
    weights.use(Aggregation())
    assert play((0.0, 0.0, 6.0)) == pytest.approx(2.0)


def _plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def test_the_norm_limit_follows_from_the_weights_and_the_rate() -> None:
    for fill, size in ((0.5, 0.5), (0.0, 0.01)):
        model = nn.Linear(8, 2, bias=False)
        nn.init.constant_(model.weight, fill)
        weights = GlobalWeights(
            model,
            lambda m: torch.optim.SGD(m.parameters(), lr=0.25),
            is_difference=False,
            max_move=3.0,
        )
        assert weights.norm_limit() == pytest.approx(3.0 * size * 4.0 / 0.25)
        zeros = Update(np.zeros(16, np.float32), np.zeros(0, np.float32))
        weights.add("w1", zeros, 1)
        nn.init.constant_(model.weight, 1.0)
        weights.apply(1.0)
        assert weights.norm_limit() == pytest.approx(3.0 * 4.0 / 0.25)
    model = nn.Linear(8, 2)
    free = GlobalWeights(model, _plain_sgd, is_difference=False, max_move=0.0)
    assert free.norm_limit() == math.inf


def test_tiny_updates_of_one_worker_change_nothing_for_others() -> None:
    norms = UpdateNorms()
    for worker in ("anna", "ben"):
        assert norms.check(worker, 1.0, 100.0, NAMES) is None
    everybody = ("anna", "ben", "eve")
    for _ in range(40):
        assert norms.check("eve", 1e-12, 100.0, everybody) is None
    for _ in range(5):
        for worker in ("anna", "ben"):
            assert norms.check(worker, 1.0, 100.0, everybody) is None


def test_an_unusual_norm_is_told_from_one_that_all_have() -> None:
    norms = UpdateNorms()
    everybody = ("anna", "ben", "eve")
    first = norms.check("eve", 1e5, 100.0, everybody)
    assert first is not None
    assert not first.is_unusual, "nobody else is known yet"
    for worker in ("anna", "ben"):
        assert norms.check(worker, 1.0, 100.0, everybody) is None
    refused = norms.check("eve", 1.1 * MAX_RATIO, 1e9, everybody)
    assert refused is not None
    assert refused.is_unusual
    for _ in range(16):  # the model has diverged: all send the same
        for worker in everybody:
            norms.check(worker, 1e7, 100.0, everybody)
    refused = norms.check("anna", 1e7, 100.0, everybody)
    assert refused is not None
    assert not refused.is_unusual
    assert norms.check("anna", 1e7, 1e9, ("anna",)) is None, "the others are gone"


def test_waits_after_a_quarantine_grow_and_never_lock_a_tunnel() -> None:
    sources = QuarantinedSources()
    assert sources.wait_s("192.0.2.1", 0.0) == 0
    for n, wait_s in enumerate((60, 120, 240, 480, 960, 1920, 3600, 3600)):
        now_s = n * 1e5
        sources.add("192.0.2.1", now_s)
        assert sources.wait_s("192.0.2.1", now_s) == wait_s
    assert (FIRST_WAIT_S, LONGEST_WAIT_S) == (60.0, 3600.0)
    assert sources.wait_s("192.0.2.2", 0.0) == 0
    assert not sources.is_known("192.0.2.2")
    for tenth in range(1000):  # as often as it likes
        sources.add("", tenth / 10)
    free = sum(sources.wait_s("", s / 10) == 0 for s in range(1000, 1400))
    assert free >= 100
    assert sources.wait_s("", 100.0) <= SHARED_WAIT_S
    for i in range(5000):
        sources.add(f"source {i}", 2e6)
    assert len(sources._sources) <= 1024


def test_sources_are_addresses_and_networks() -> None:
    for host, source in (
        ("127.0.0.1", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ):
        assert source_of(host) == source


@pytest.mark.parametrize(
    ("rule", "clip", "plan"),
    [
        ("mode", 0.0, {}),
        ("mean", 0.5, {}),
        ("mean", float("nan"), {}),
        ("median", 0.0, {"workers": 2}),
        ("trimmed", 0.0, {"mode": "async"}),
        ("mean", 3.0, {"mode": "bounded"}),
    ],
)
def test_rules_that_cannot_work_are_refused(
    rule: str, clip: float, plan: dict[str, object]
) -> None:
    settings: Any = {"rounds": 5, "workers": 3, **plan}
    with pytest.raises(ConfigError, match=r"--aggregate|--clip"):
        Plan(**settings, aggregation=Aggregation(rule, clip))  # type: ignore[arg-type]
