"""Shares follow measured speeds: soon, without swinging, and equal on all members."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.training.data.balance import (
    Balance,
    Flag,
    Report,
    Speed,
    observe,
    step_s,
)

A, B, C, D = NODES = [NodeId(letter * 52) for letter in "abcd"]
TIMES = {A: 1.0, B: 2.0, C: 4.0, D: 4.0}
"""Quantum times of machines with the speeds 4:2:1:1."""


def step(
    balance: Balance,
    times: dict[NodeId, float],
    num_quanta: int = 32,
    noise: random.Random | None = None,
) -> Balance:
    """Deliver a step in which every member computed the quanta it was given."""
    counts = balance.quotas_for(num_quanta, list(times))
    reports = {
        m: Report(time_s * (noise.gauss(1, 0.05) if noise else 1) if counts[m] else 0.0)
        for m, time_s in times.items()
    }
    return observe(balance, num_quanta, list(times), reports)


def efficiency(balance: Balance, times: dict[NodeId, float], num_quanta: int) -> float:
    """Share of the summed stand-alone throughput, before communication."""
    counts = balance.quotas_for(num_quanta, list(times))
    ideal_s = num_quanta / sum(1 / time_s for time_s in times.values())
    return ideal_s / step_s(counts, times)


def test_shares_of_4_2_1_1_hold_after_the_first_step() -> None:
    balance = Balance()
    assert efficiency(balance, TIMES, 32) == 0.5  # the equal split
    balance = step(balance, TIMES)
    assert dict(balance.quotas) == {A: 16, B: 8, C: 4, D: 4}
    assert balance.reason == "first measurements"
    assert efficiency(balance, TIMES, 32) == 1.0


@pytest.mark.parametrize("seed", range(8))
def test_noise_leaves_the_shares_at_nine_tenths_and_calm(seed: int) -> None:
    chance = random.Random(seed)
    times = {m: chance.uniform(1, 8) for m in NODES}
    balance, changes = Balance(), 0
    for number in range(60):
        before = balance.quotas
        balance = step(balance, times, noise=chance)
        changes += number > 5 and balance.quotas != before
        if number >= 4:
            assert efficiency(balance, times, 32) >= 0.85
    assert efficiency(balance, times, 32) >= 0.9
    assert changes <= 4
    assert 0.01 < balance.noise < 0.1


def test_a_machine_at_half_speed_is_rebalanced_within_five_steps() -> None:
    balance = Balance()
    for _ in range(20):
        balance = step(balance, TIMES)
    slowed = {**TIMES, A: 2.0}
    steps = 0
    while efficiency(balance, slowed, 32) < 0.9:
        balance = step(balance, slowed)
        steps += 1
    assert steps == 1
    assert "aaaaaaaa" in balance.reason
    for _ in range(5):  # and back
        balance = step(balance, TIMES)
    assert efficiency(balance, TIMES, 32) >= 0.9


def test_one_slow_step_is_forgotten_in_the_next_one() -> None:
    balance = Balance()
    for _ in range(10):
        balance = step(balance, TIMES)
    balance = step(balance, {**TIMES, A: 3.0})
    balance = step(balance, TIMES)
    assert dict(balance.quotas) == {A: 16, B: 8, C: 4, D: 4}


def test_quotas_follow_a_slow_drift_after_some_steps() -> None:
    balance = Balance()
    for _ in range(10):
        balance = step(balance, {A: 1.0, B: 1.0}, 20)
    counts = []
    for _ in range(20):
        balance = step(balance, {A: 1.0, B: 1.24}, 20)
        counts.append(dict(balance.quotas)[B])
    assert counts[:3] == [10, 10, 10]
    assert counts[-1] == 9
    assert "faster than before" in balance.reason


def test_warming_up_does_not_count() -> None:
    balance = step(Balance(), {**TIMES, A: 30.0})
    balance = step(balance, TIMES)
    assert dict(balance.quotas) == {A: 16, B: 8, C: 4, D: 4}


def test_a_newcomer_gets_a_probe_and_then_its_share() -> None:
    known = {A: 1.0, B: 1.0}
    balance = step(step(Balance(), known, 12), known, 12)
    assert balance.quotas_for(12, [A, C, B]) == {A: 6, C: 1, B: 5}
    balance = step(balance, {A: 1.0, C: 1.0, B: 1.0}, 12)
    assert dict(balance.quotas) == {A: 4, C: 4, B: 4}
    assert balance.reason == "the machines of the run changed"
    # It leaves and returns: its speed is remembered.
    balance = step(balance, known, 12)
    assert balance.quotas_for(12, [A, B, C]) == {A: 4, B: 4, C: 4}


def test_flags_make_spares_for_as_long_as_they_last() -> None:
    balance = step(Balance(), TIMES)
    reports = {m: Report(t) for m, t in TIMES.items()}
    tired = {**reports, B: Report(2.0, Flag.BATTERY), D: Report(4.0, Flag.LEAVING)}
    balance = observe(balance, 32, NODES, tired)
    counts = dict(balance.quotas)
    assert (counts[B], counts[D]) == (0, 0)
    assert "without work" in balance.reason
    rested = {**reports, B: Report(0.0), D: Report(0.0)}
    balance = observe(balance, 32, NODES, rested)
    assert dict(balance.quotas) == {A: 16, B: 8, C: 4, D: 4}


def test_a_member_too_slow_for_work_is_measured_again_at_little_cost() -> None:
    times = {A: 1.0, B: 100.0}
    balance = Balance()
    for work in (1, 1, 0):  # it loses its work when it was slow three times
        balance = step(balance, times, 4)
        assert dict(balance.quotas)[B] == work
    slow_steps = 0
    for _ in range(2000):
        balance = step(balance, times, 4)
        slow_steps += dict(balance.quotas)[B]
    assert 1 <= slow_steps <= 5
    for _ in range(1000):
        balance = step(balance, {A: 1.0, B: 1.0}, 4)
    assert dict(balance.quotas) == {A: 2, B: 2}


@pytest.mark.parametrize("num_known", [0, 20], ids=["newcomer", "member"])
def test_one_slow_quantum_takes_no_work_away(num_known: int) -> None:
    balance = step(Balance(), {A: 1.0}, 4)
    for _ in range(num_known):
        balance = step(balance, {A: 1.0, B: 1.0}, 4)
    balance = step(balance, {A: 1.0, B: 1000.0}, 4)  # it warms up, or was held up
    for _ in range(2):
        assert dict(balance.quotas)[B] >= 1
        balance = step(balance, {A: 1.0, B: 1.0}, 4)
    assert dict(balance.quotas) == {A: 2, B: 2}


def test_values_that_are_no_times_are_ignored() -> None:
    balance = step(Balance(), TIMES)
    bad = {A: float("nan"), B: float("inf"), C: -1.0, D: 1e30}
    after = observe(balance, 32, NODES, {m: Report(t) for m, t in bad.items()})
    assert after.quantum_s == balance.quantum_s
    assert after.quotas == balance.quotas


def test_a_balance_survives_plain_values() -> None:
    balance = Balance()
    for number in range(7):
        balance = step(balance, {**TIMES, B: 2.0 + number / 3})
        assert Balance.from_plain(json.loads(json.dumps(balance.to_plain()))) == balance
    with pytest.raises(ConfigError):
        Balance.from_plain({"speeds": 3})


def known(times: dict[NodeId, float], quotas: dict[NodeId, int]) -> Balance:
    """A balance after many steps with these times."""
    speeds = tuple((m, Speed(time_s, (time_s,) * 5)) for m, time_s in times.items())
    return Balance(speeds, tuple(quotas.items()))


@pytest.mark.parametrize(
    ("num_quanta", "num_steps"), [(4, 3), (20, 3), (100, 8), (150, 12)]
)
def test_better_quotas_must_be_better_in_steps_in_a_row(
    num_quanta: int, num_steps: int
) -> None:
    times, half = {A: 1.0, B: 1.0}, num_quanta // 2
    balance = known(times, {A: half + 1, B: half - 1})
    for _ in range(num_steps - 1):
        balance = step(balance, times, num_quanta)
        assert dict(balance.quotas) == {A: half + 1, B: half - 1}
    balance = step(balance, times, num_quanta)
    assert dict(balance.quotas) == {A: half, B: half}
    assert "faster than before" in balance.reason


def test_a_gain_below_one_percent_changes_nothing() -> None:
    times = {A: 1.0, B: 1.0}
    balance = known(times, {A: 151, B: 149})
    for _ in range(50):
        balance = step(balance, times, 300)
    assert dict(balance.quotas) == {A: 151, B: 149}


def test_what_was_measured_long_ago_does_not_count() -> None:
    balance = known({A: 1.0, B: 100.0}, {A: 3, B: 1})
    idle = tuple((m, replace(s, unmeasured=500)) for m, s in balance.speeds[1:])
    balance = replace(balance, speeds=(balance.speeds[0], *idle))
    after = observe(balance, 4, [A, B], {A: Report(1.0), B: Report(1.0)})
    assert after.quantum_s[B] == 1.0
    assert dict(after.quotas) == {A: 2, B: 2}
