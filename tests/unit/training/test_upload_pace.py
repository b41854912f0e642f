"""How fast learners get state, beside the reductions of a run."""

from __future__ import annotations

import asyncio

import pytest

from ringleader.training.join.upload_pace import (
    FIRST_RATE,
    LEAST_RATE,
    SHARE,
    Measured,
    UploadPace,
    rate_beside,
    sent_bytes,
)

GRADIENT = 100_000_000
"""Bytes of 25 million parameters."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_ring_sends_most_of_the_gradient_twice() -> None:
    assert sent_bytes(GRADIENT, 2, is_coded=False) == 1e8
    assert sent_bytes(GRADIENT, 4, is_coded=False) == 1.5e8
    assert sent_bytes(GRADIENT, 1, is_coded=False) == 0
    assert sent_bytes(GRADIENT, 4, is_coded=True) < 0.4e8


@pytest.mark.parametrize("link", [1.25e6, 12.5e6, 125e6, 1.25e9])
def test_learners_get_a_share_of_any_link(link: float) -> None:
    """A reduction that shares the link is at most a quarter longer."""
    sent = sent_bytes(GRADIENT, 3, is_coded=False)
    rate = rate_beside([Measured(sent, sent / link)])
    assert rate == pytest.approx(SHARE * link)
    assert sent / (link - rate) <= 1.25 * sent / link + 1e-9


def test_the_fastest_reduction_counts_and_none_is_needed() -> None:
    slow, fast = Measured(1e8, 9.0), Measured(1e8, 1.0)
    assert rate_beside([slow, fast, slow]) == rate_beside([fast])
    assert rate_beside([]) == FIRST_RATE
    assert rate_beside([Measured(1.0, 1e3)]) == LEAST_RATE
    assert rate_beside([Measured(1e8, 0.0)]) == FIRST_RATE, "a clock that stands still"


def test_the_link_is_the_learners_between_reductions() -> None:
    clock = Clock()
    pace = UploadPace(clock)
    assert pace.wait_s(1 << 30) == 0, "nothing else uses the link"
    pace.begin()
    clock.now_s += 2.0
    pace.end(1e8)  # 50 MB/s, so learners get 10
    assert pace.wait_s(1 << 30) == 0
    pace.begin()
    assert pace.wait_s(1_000_000) == pytest.approx(0.1)
    assert pace.wait_s(1_000_000) == pytest.approx(0.2)
    clock.now_s += 0.15
    assert pace.wait_s(0) == pytest.approx(0.05)
    pace.end(0)  # it failed, and tells nothing
    assert pace.wait_s(1 << 30) == 0
    pace.begin()
    assert pace.wait_s(1_000_000) == pytest.approx(0.1), "as measured before"


def test_a_sender_that_waits_goes_on_when_the_reduction_has_ended() -> None:
    async def main() -> None:
        pace = UploadPace()
        pace.begin()
        waiting = asyncio.create_task(pace.sent(1 << 40))  # for half a day
        await asyncio.sleep(0.01)
        assert not waiting.done()
        pace.end(0)
        await asyncio.wait_for(waiting, 60)

    asyncio.run(main())
