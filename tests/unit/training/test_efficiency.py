"""Predictions of a plan: the numbers of the design, and what they advise."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ringleader.collectives.cost_model import LinkCost, Network
from ringleader.ids import NodeId
from ringleader.training.data.assignment import quotas
from ringleader.training.data.balance import Balance, Report, observe
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.efficiency import (
    Traffic,
    plan_text,
    predict,
    slow_links,
    ways_to_goal,
)

A, B, C, D = NODES = [NodeId(letter * 52) for letter in "abcd"]
TIMES = {A: 0.1, B: 0.2, C: 0.4, D: 0.4}
NAMES = {A: "pc", B: "laptop", C: "nas", D: "mini"}


def measured(num_quanta: int, times: dict[NodeId, float] = TIMES) -> Balance:
    reports = {m: Report(t) for m, t in times.items()}
    return observe(Balance(), num_quanta, list(times), reports)


def spec_of(num_quanta: int) -> DataSpec:
    return DataSpec(
        num_samples=10**6, global_batch=16 * num_quanta, micro_batch=16, epochs=None
    )


@pytest.mark.parametrize(
    ("count", "expected"), [(8, 1.0), (12, 0.857), (16, 1.0), (32, 1.0), (64, 1.0)]
)
def test_whole_quanta_cost_what_the_design_says(count: int, expected: float) -> None:
    found = predict(quotas(count, NODES, TIMES), TIMES, 0.0, 0.0)
    assert found.efficiency == pytest.approx(expected, abs=1e-3)
    assert found.efficiency >= count / (count + len(NODES) - 1)


def test_32_quanta_reach_nine_tenths_for_any_speeds_from_1_to_8() -> None:
    chance = random.Random(1)
    for _ in range(200):
        times = {m: 1 / chance.uniform(1, 8) for m in NODES}
        found = predict(quotas(32, NODES, times), times, 0.0, 0.0)
        assert found.efficiency >= 0.9


def test_communication_and_noise_lower_the_efficiency() -> None:
    counts = quotas(32, NODES, TIMES)
    found = predict(counts, TIMES, 0.4, 0.05)
    assert found.compute_s == pytest.approx(1.6)
    assert found.efficiency == pytest.approx(0.95 * 1.6 / 2.0)
    assert predict({A: 0}, {}, 0.0, 0.0).efficiency == 0.0


def test_advice_for_a_slow_network_reaches_the_goal() -> None:
    ways = list(ways_to_goal(spec_of(32), measured(32), NODES, 0.4))
    assert ways[0] == 'codec="int8"'
    assert ways[1] == "global_batch=1536"  # 4.8 s of computing for 0.4 s
    assert ways[-1] == 'low_comm="diloco:10"'
    # 25 M parameters at 1 Gbit/s: neither alone is enough.
    ways = list(ways_to_goal(spec_of(32), measured(32), NODES, 1.26))
    assert ways[0] == 'global_batch=1024 with codec="int8"'
    assert ways[1] == "global_batch=4096"
    assert len(ways) == 3


def test_advice_for_too_few_quanta_is_smaller_ones() -> None:
    ways = list(ways_to_goal(spec_of(12), measured(12), NODES, 0.0))
    assert ways[0] == "micro_batch=8"
    assert "global_batch=384" in ways


def plan(balance: Balance, reduce_s: float, traffic: Traffic | None = None) -> str:
    return plan_text(
        spec_of(32), balance, lambda _: reduce_s, NAMES, traffic or Traffic(1)
    )


def test_the_plan_tells_shares_reason_prediction_and_advice() -> None:
    assert plan(measured(32), 0.4) == (
        "a step is 32 times 16 samples: pc 16, laptop 8, nas 4, mini 4 (first "
        "measurements). Expected: 1.6 s computing, 0.4 s waiting for the network, 80% "
        "of what the machines reach alone; "
        '90% with codec="int8" or global_batch=1536 or low_comm="diloco:10"'
    )
    assert plan(measured(32), 0.01).endswith("99% of what the machines reach alone")
    coded = plan(measured(32), 0.4, Traffic(1, "int8", is_rounds=True))
    assert coded.endswith("90% with global_batch=1536"), "what is used is not advised"
    named = replace(measured(32), reason=f"the speed of {B[:8]} changed")
    assert "(the speed of laptop changed)" in plan(named, 0.4)
    assert "too busy" in plan(replace(measured(32), noise=0.3), 0.0)


def lan(slow: float) -> Network:
    """Four machines at 1 Gbit/s, the last one with a link of ``slow`` bytes/s."""
    speeds = [125e6, 125e6, 125e6, slow]
    links = tuple(
        tuple(
            None if a == b else LinkCost(1e-4, min(speeds[a], speeds[b]))
            for b in range(4)
        )
        for a in range(4)
    )
    return Network(links=links, hosts=(0, 1, 2, 3))


def test_a_machine_whose_link_costs_more_than_it_computes_is_named() -> None:
    times = dict.fromkeys(NODES, 0.2)
    spec, balance = spec_of(32), measured(32, times)
    gradient = Traffic(100_000_000)
    good, bad = (gradient.reduce_s(lan(s), NODES) for s in (125e6, 2e6))
    assert good(NODES) == pytest.approx(1.2, rel=0.1)
    assert good([A]) == 0.0
    coded = Traffic(100_000_000, "int8").reduce_s(lan(125e6), NODES)
    assert coded(NODES) == pytest.approx(0.26 * good(NODES), rel=0.1)
    assert slow_links(spec, balance, NODES, good) == ()
    assert slow_links(spec, balance, NODES, bad) == (D,)
    text = plan_text(spec, balance, bad, NAMES, gradient)
    assert "90% with a faster link to mini, or without it or" in text
    # A model so large that one machine alone is faster.
    huge = Traffic(10**11).reduce_s(lan(125e6), NODES)
    assert len(slow_links(spec, balance, NODES, huge)) == 3
