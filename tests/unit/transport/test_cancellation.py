"""An operation is cancelled by another thread; steps at once end together."""

from __future__ import annotations

import time
from functools import partial

import pytest

from ringleader.deadline import Cancellation, Deadline
from ringleader.transport.parallel_steps import run_at_once


def test_a_cancelled_deadline_is_over_and_the_first_reason_counts() -> None:
    stop = Cancellation()
    told: list[str] = []
    deadline = Deadline.after(100.0, stop)
    stop.on_cancel(told.append)
    assert not deadline.is_over()
    stop.cancel("node-b was lost")
    stop.cancel("later")
    stop.on_cancel(told.append)
    assert told == ["node-b was lost"] * 2
    assert deadline.is_over()
    assert deadline.left_s() == deadline.wait_s() == deadline.within(5.0).left_s() == 0


def test_waits_of_an_operation_that_can_be_cancelled_are_short() -> None:
    assert Deadline.after(100.0).wait_s() > 50
    young = Deadline(time.monotonic() + 200, 100.0, Cancellation())
    assert young.wait_s() == 0.005
    old = Deadline(time.monotonic() + 50, 100.0, Cancellation())
    assert old.wait_s() == 0.05
    assert Deadline.after(0.001, Cancellation()).wait_s() <= 0.001


def test_the_first_step_that_fails_ends_the_others_and_is_reported() -> None:
    stop = Cancellation()
    bound = Deadline.after(60.0, stop)
    ended: list[int] = []

    def wait(index: int) -> None:
        while not bound.is_over():
            time.sleep(bound.wait_s())
        ended.append(index)
        raise TimeoutError(str(index))

    def fail() -> None:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused"):
        run_at_once([lambda: wait(0), fail, lambda: wait(2)], bound_of(bound), stop)
    assert sorted(ended) == [0, 2]


def test_steps_that_run_out_of_time_together_fail_as_the_first_of_them() -> None:
    over = Deadline.after(0.0)

    def late(index: int) -> None:
        time.sleep(0.01 * (3 - index))
        raise TimeoutError(str(index))

    steps = [partial(late, i) for i in range(3)]
    with pytest.raises(TimeoutError, match="0"):
        run_at_once(steps, over, Cancellation())


def bound_of(deadline: Deadline) -> Deadline:
    """The same moment, which a failed step does not cancel."""
    return Deadline(deadline.at_s, deadline.after_s)
