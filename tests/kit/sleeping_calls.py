"""Knows which threads sleep in a call of a group, so that tests need not guess."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest

from ringleader.deadline import Deadline
from ringleader.engine import waiter
from ringleader.transport.link import wait_ready

WITHIN_S = 60.0


class SleepingCalls:
    """The threads of this process that sleep in a call, from now on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._threads: set[int] = set()
        patch.setattr(waiter, "wait_ready", self._sleep)

    def _sleep(self, wanted: Iterable[tuple[int, int]], timeout_s: float) -> set[int]:
        me = threading.get_ident()
        self._threads.add(me)
        try:
            return wait_ready(wanted, timeout_s)
        finally:
            self._threads.discard(me)

    def wait_for(self, *threads: threading.Thread) -> None:
        """Return when all of ``threads`` sleep at once; without any: when one does."""
        idents = {thread.ident for thread in threads}
        deadline = Deadline.after(WITHIN_S)
        while not (self._threads and idents <= self._threads):
            assert not deadline.is_over(), "the call does not wait"
            time.sleep(0.01)
