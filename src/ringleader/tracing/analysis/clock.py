"""Offsets between the clocks of two ranks, from questions and answers.

A rank notes when it asked and when the answer came; the answer is the other clock in
between. The quickest answer says most: it is off by half of its time at worst.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ringleader.tracing.analysis.events import Event

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Answer:
    """One question to rank 0, on our clock, and its answer, on its clock."""

    asked_ns: int
    theirs_ns: int
    heard_ns: int


@dataclass(frozen=True, slots=True)
class Offset:
    """How far the clock of rank 0 is ahead of ours, at one moment of ours."""

    at_ns: int
    ahead_ns: int
    error_ns: int
    """It is off by this much at worst."""


def estimate(answers: Sequence[Answer]) -> Offset:
    """Return the offset that the quickest answer shows."""
    best = min(answers, key=lambda each: each.heard_ns - each.asked_ns)
    middle_ns = (best.asked_ns + best.heard_ns) // 2
    error_ns = (best.heard_ns - best.asked_ns + 1) // 2
    return Offset(middle_ns, best.theirs_ns - middle_ns, error_ns)


class Clock:
    """Converts our times to those of rank 0; clocks drift, so by several offsets."""

    def __init__(self, offsets: Sequence[Offset]) -> None:
        self._offsets = sorted(offsets, key=lambda each: each.at_ns)
        self._times = [each.at_ns for each in self._offsets]
        self.error_ns = max((each.error_ns for each in offsets), default=0)

    def convert(self, at_ns: int) -> int:
        """Return a time on the clock of rank 0, between two offsets by proportion."""
        if not self._offsets:
            return at_ns
        after = bisect_right(self._times, at_ns)
        if after == 0:
            return at_ns + self._offsets[0].ahead_ns
        left = self._offsets[after - 1]
        if after == len(self._offsets):
            return at_ns + left.ahead_ns
        right = self._offsets[after]
        share = (at_ns - left.at_ns) / (right.at_ns - left.at_ns)
        return at_ns + left.ahead_ns + round(share * (right.ahead_ns - left.ahead_ns))

    def convert_event(self, event: E) -> E:
        """Return the event on the clock of rank 0."""
        begin_ns, end_ns = self.convert(event.begin_ns), self.convert(event.end_ns)
        return replace(event, begin_ns=begin_ns, end_ns=max(begin_ns, end_ns))
