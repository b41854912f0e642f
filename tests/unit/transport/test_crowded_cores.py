"""Waiting threads stop to yield while other programs keep the core for long."""

from __future__ import annotations

import pytest

from ringleader.transport import crowded_cores
from ringleader.transport.crowded_cores import (
    FEW_ATTEMPTS,
    LATE_S,
    LONGEST_REST_S,
    SHORTEST_REST_S,
    Rest,
    are_crowded,
    relax,
)


class Core:
    """A core with a clock, and another program that keeps it when it gets it."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.kept_s = 0.0
        self.num_yields = 0

    def now_s(self) -> float:
        return self.time_s

    def yield_core(self) -> None:
        self.num_yields += 1
        self.time_s += self.kept_s


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    made = Core()
    monkeypatch.setattr(crowded_cores, "now_s", made.now_s)
    monkeypatch.setattr(crowded_cores, "yield_core", made.yield_core)
    monkeypatch.setattr(crowded_cores, "_yields", Rest())
    return made


def test_a_quick_yield_is_repeated(core: Core) -> None:
    core.kept_s = LATE_S / 2
    for _ in range(100):
        relax()
    assert core.num_yields == 100


def test_after_a_late_yield_there_is_none_for_a_while(core: Core) -> None:
    core.kept_s = 3 * LATE_S
    for _ in range(100):
        relax()
    assert core.num_yields == 1
    core.time_s += SHORTEST_REST_S
    relax()
    assert core.num_yields == 2


def test_a_program_that_always_computes_costs_a_thousandth(core: Core) -> None:
    core.kept_s = 3 * LATE_S
    begun_s, step_s = core.time_s, SHORTEST_REST_S / 4
    while core.time_s < begun_s + 600:
        core.time_s += step_s
        relax()
    assert 60 <= core.num_yields < 80


def test_rests_grow_until_an_attempt_in_many_is_late(core: Core) -> None:
    rest, lengths_s = Rest(), []
    for _ in range(12):
        rest.begin()
        lengths_s.append(rest.length_s)
        assert not rest.may_try()
        core.time_s += rest.length_s + 1000.0  # what matters is not the time
        assert rest.may_try()
    assert lengths_s[:3] == [SHORTEST_REST_S * f for f in (1, 2, 4)]
    assert lengths_s[-1] == LONGEST_REST_S
    for _ in range(FEW_ATTEMPTS):
        assert rest.may_try()
    rest.begin()
    assert rest.length_s == SHORTEST_REST_S


def test_cores_are_crowded_from_a_late_yield_until_the_rest_is_over(core: Core) -> None:
    relax()
    assert not are_crowded()
    core.kept_s = 2 * LATE_S
    relax()
    assert are_crowded()
    core.time_s += SHORTEST_REST_S
    assert not are_crowded()
