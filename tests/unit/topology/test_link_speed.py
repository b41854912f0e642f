"""How the bursts of a measurement grow, and which of them is believed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringleader.topology.link_speed import (
    BURST_S,
    ENOUGH_S,
    FIRST_BYTES,
    MAX_BURSTS,
    MAX_BYTES,
    Try,
    next_burst,
)

SPEEDS = [0.1, 1, 2, 10, 54, 100, 1000, 2500, 10_000, 100_000]
"""Mbit/s."""


def simulate(
    took_s: Callable[[int, int], float], round_trip_s: float = 0.0
) -> list[Try]:
    """The bursts when one of ``size`` bytes, the ``number``th, takes that long."""
    tries: list[Try] = []
    while size := next_burst(tries, round_trip_s):
        tries.append((size, took_s(size, len(tries))))
    return tries


@pytest.mark.parametrize("mbit", SPEEDS)
def test_bursts_are_long_enough_few_and_bounded(mbit: float) -> None:
    speed = mbit * 1e6 / 8
    tries = simulate(lambda size, _: size / speed)
    sizes = [size for size, _ in tries]
    assert sizes[0] == FIRST_BYTES
    assert sizes[-1] == sizes[-2], "the last one is tried twice"
    assert len(sizes) <= MAX_BURSTS
    assert MAX_BYTES / 2 <= sum(sizes) <= MAX_BYTES or tries[-1][1] >= ENOUGH_S
    assert max(seconds for _, seconds in tries) <= max(BURST_S, FIRST_BYTES / speed)
    assert sum(seconds for _, seconds in tries) < max(0.3, 2.1 * FIRST_BYTES / speed)


@pytest.mark.parametrize("stalled", range(6))
@pytest.mark.parametrize("mbit", [2, 100, 1000])
def test_one_stall_changes_nothing_but_the_time(mbit: float, stalled: int) -> None:
    """A lost packet costs a burst 0.2 s more; the other try of that length counts."""
    speed = mbit * 1e6 / 8
    tries = simulate(lambda size, n: size / speed + 0.2 * (n == stalled))
    size = tries[-1][0]
    best_s = min(seconds for num_bytes, seconds in tries if num_bytes == size)
    assert size / best_s == pytest.approx(speed)
    assert len(tries) <= MAX_BURSTS


def test_stalls_everywhere_still_end() -> None:
    for stall_s in (0.0, 0.01, 0.05, 1.0):
        tries = simulate(lambda size, n, stall_s=stall_s: stall_s)  # type: ignore[misc]
        assert len(tries) <= MAX_BURSTS
        assert sum(size for size, _ in tries) <= MAX_BYTES


@pytest.mark.parametrize("round_trip_s", [0.02, 0.04, 0.1])
@pytest.mark.parametrize("mbit", [10, 100])
def test_how_tcp_begins_is_not_taken_for_the_speed(
    mbit: float, round_trip_s: float
) -> None:
    """Each burst begins anew: TCP sends 14 KiB in the first round trip, and twice as
    much in each further one. A burst of 48 KiB would show 2 to 5 % of 100 Mbit/s."""
    speed = mbit * 1e6 / 8

    def took_s(size: int, _: int) -> float:
        window, left, waits = float(14 << 10), size - (14 << 10), 0
        while left > 0 and window < speed * round_trip_s:
            window, waits = 2 * window, waits + 1
            left -= int(window)
        return waits * round_trip_s + size / speed

    tries = simulate(took_s, round_trip_s)
    size = tries[-1][0]
    best_s = min(seconds for num_bytes, seconds in tries if num_bytes == size)
    assert size / best_s > speed / 10
    spent_s = sum(seconds for _, seconds in tries) + len(tries) * round_trip_s
    assert spent_s < 3.0, "both ways and the pings fit into 8 s"
