"""SleepClock: measures for how long this machine was suspended."""

from __future__ import annotations

import time
from collections.abc import Callable

ASLEEP_S = 5.0
"""A shorter suspension does no harm: the others wait that long for a silent member."""


def suspended_s() -> float:
    """Return the time that this machine was suspended since it was started.

    It is the difference between a clock that runs during a suspension and one that does
    not. Where the system has no such clocks it is zero; the others then evict a machine
    that sleeps because it is silent.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux
        return _difference_s(time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC)
    if hasattr(time, "CLOCK_UPTIME_RAW"):  # macOS
        return _difference_s(time.CLOCK_MONOTONIC_RAW, time.CLOCK_UPTIME_RAW)
    return 0.0


def _difference_s(clock: int, pausing_clock: int) -> float:
    return time.clock_gettime(clock) - time.clock_gettime(pausing_clock)


class SleepClock:
    """Detects that the machine was asleep since the last look. For one thread."""

    def __init__(self, read: Callable[[], float] = suspended_s) -> None:
        self._read = read
        self._last_s = read()

    def slept_s(self) -> float:
        """Return for how long the machine was asleep since the last call, or zero."""
        now_s = self._read()
        slept_s = now_s - self._last_s
        if slept_s <= ASLEEP_S:
            return 0.0  # the reference stays: short naps add up
        self._last_s = now_s
        return slept_s
