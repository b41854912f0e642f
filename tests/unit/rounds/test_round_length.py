"""The length of rounds, shares by speed, and the weight of late differences."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.rounds.round_length import (
    MAX_AGE,
    MAX_EXPOSED,
    MAX_STEPS,
    WorkerTimes,
    late_weight,
    mean_steps,
    split_by_speed,
    steps_for,
)

_seconds = st.floats(1e-4, 100)


@given(_seconds, _seconds)
def test_a_round_spends_little_time_on_its_exchange(
    step_s: float, round_s: float
) -> None:
    steps = steps_for(step_s, round_s)
    share = round_s / (steps * step_s + round_s)
    assert share <= MAX_EXPOSED * 1.0001 or steps == MAX_STEPS
    shorter = round_s / ((steps - 1) * step_s + round_s) if steps > 1 else 1.0
    assert shorter > MAX_EXPOSED * 0.9999


def test_the_ends_of_the_range() -> None:
    assert steps_for(0.1, 0.0) == 1
    assert steps_for(0.1, 0.0, least=50) == 50
    assert steps_for(0.0, 1.0) == MAX_STEPS
    assert steps_for(1e-9, 100.0) == MAX_STEPS
    assert steps_for(0.1, 1.0) == 190


@given(st.lists(st.tuples(_seconds, st.floats(0, 10)), min_size=1, max_size=9))
def test_rounds_of_unlike_workers_take_the_same_time(
    measured: list[tuple[float, float]],
) -> None:
    """Each makes its share of the mean; the slowest exchange sets the time."""
    workers = [WorkerTimes(*each) for each in measured]
    round_s = max(steps_for(s, e) * s + e for s, e in workers)
    shares = [(round_s - e) / s for s, e in workers]
    found = mean_steps(workers, most=10**9)
    assert found == pytest.approx(
        max(1, sum(shares) / len(shares)), rel=1e-6, abs=1.001
    )
    if all(steps_for(s, e) < MAX_STEPS for s, e in workers):
        assert all(e <= MAX_EXPOSED * round_s * 1.0001 for _, e in workers)
    assert mean_steps(workers, least=7, most=9) in range(7, 10)


def test_without_measurements_rounds_stay_as_they_are() -> None:
    assert mean_steps([], least=50) == 50
    assert mean_steps([WorkerTimes(0.0, 1.0)], least=50) == 50


@given(
    st.integers(1, 5000),
    st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=20),
)
def test_shares_sum_up_and_nobody_is_left_out(total: int, speeds: list[float]) -> None:
    parts = split_by_speed(total, speeds)
    assert sum(parts) == max(total, len(speeds))
    assert min(parts) >= 1


def test_shares_follow_the_speeds() -> None:
    assert split_by_speed(32, [4, 2, 1, 1]) == [16, 8, 4, 4]
    assert split_by_speed(10, [1, 1, 1]) == [4, 3, 3]
    assert split_by_speed(30, [0, 2, 4]) == [10, 7, 13]  # the unknown one is usual
    assert split_by_speed(9, [0, 0, 0]) == [3, 3, 3]
    assert split_by_speed(5, [1000, 1, 1]) == [3, 1, 1]


@pytest.mark.parametrize("age", range(-1, MAX_AGE + 3))
def test_late_differences_weigh_less_and_then_nothing(age: int) -> None:
    expected = math.exp(-0.3 * age) if 0 <= age <= 8 else 0.0
    assert late_weight(age) == pytest.approx(expected)
