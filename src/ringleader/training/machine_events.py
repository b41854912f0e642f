"""MachineEvents: SIGTERM, a low battery and hanging code, as the loop sees them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from ringleader.training.control.battery import should_spare
from ringleader.training.control.termination import LeaveRequest
from ringleader.training.control.work_watch import WorkWatch
from ringleader.training.data.balance import Flag

BATTERY_EVERY_S = 60.0
LEAVE_AFTER_STEPS = 2


class MachineEvents:
    """Events of this machine that the others have to know. For the user's thread.

    After SIGTERM a member announces that it leaves, and leaves after the next step in
    which it has no work. So nobody waits for it, and nothing is computed twice.
    """

    def __init__(
        self, watch: WorkWatch, is_battery_low: Callable[[], bool] = should_spare
    ) -> None:
        self._watch = watch
        self._is_battery_low = is_battery_low
        self._leave_request = LeaveRequest()
        self._usual_s = 0.0
        self._looked_s = -inf
        self._is_spare = False
        self._num_told = 0
        self.must_leave = False
        """True if this member was asked to leave and the others are ready for it."""

    def start(self) -> None:
        """Catch SIGTERM, if this is the main thread and nobody else does."""
        self._leave_request.__enter__()

    def close(self) -> None:
        """Let SIGTERM do what it did before."""
        self._watch.end()
        self._leave_request.__exit__()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Watch that the data of a quantum comes."""
        self._watch.begin(self._usual_s)
        try:
            yield
        finally:
            self._watch.end()

    def begin_quantum(self) -> None:
        """Note that user code computes a quantum now."""
        self._watch.begin(self._usual_s)

    def end_quantum(self, took_s: float) -> None:
        """Note that user code has computed a quantum."""
        self._watch.end()
        self._usual_s = took_s

    def flags(self) -> Flag:
        """Return what the others are told with the next step."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= BATTERY_EVERY_S:
            self._looked_s, self._is_spare = now_s, self._is_battery_low()
        flags = Flag.BATTERY if self._is_spare else Flag(0)
        return flags | Flag.LEAVING if self._leave_request.is_set() else flags

    def on_delivered(self, told: Flag, num_quanta: int) -> None:
        """Note a delivered step: what this member told in it, and its quanta."""
        if Flag.LEAVING in told:
            self._num_told += 1
            is_free = num_quanta == 0 or self._num_told >= LEAVE_AFTER_STEPS
            self.must_leave = self.must_leave or is_free

    def terminate(self) -> None:
        """End the process as SIGTERM would have done at once."""
        self.close()
        signal.raise_signal(signal.SIGTERM)
