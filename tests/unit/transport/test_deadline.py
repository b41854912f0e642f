"""One moment bounds a whole operation."""

from __future__ import annotations

import dataclasses
import time

import pytest

from ringleader.deadline import Deadline


def test_a_deadline_ahead_is_not_over() -> None:
    before_s = time.monotonic()
    deadline = Deadline.after(100.0)
    assert deadline.after_s == 100.0
    assert 100.0 <= deadline.at_s - before_s <= 160.0
    assert 40.0 < deadline.left_s() <= 100.0
    assert not deadline.is_over()


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_deadline_behind_is_over_and_has_nothing_left(seconds: float) -> None:
    deadline = Deadline.after(seconds)
    assert deadline.is_over()
    assert deadline.left_s() == 0.0


def test_what_is_left_shrinks_with_the_clock() -> None:
    now_s = time.monotonic()
    assert Deadline(now_s + 5.0, 60.0).left_s() <= 5.0
    assert Deadline(now_s - 5.0, 60.0).left_s() == 0.0


def test_a_deadline_cannot_be_moved() -> None:
    deadline = Deadline.after(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        deadline.at_s = 0.0  # type: ignore[misc]
