"""Watch: lets one thread wait until the state of an endpoint is as it needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Watch:
    """A wait for a condition that other threads ask when they have changed something.

    They ask it themselves. Waking the waiting thread so that it asks would cost every
    call two changes of threads in a rank that serves others while it shuts down.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: Callable[[], bool] | None = None

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Return True when ``ready()``, which any thread may call; False at the end.

        For one thread at a time.
        """
        with self._changed:
            self._ready = ready
            try:
                return self._changed.wait_for(ready, timeout_s)
            finally:
                self._ready = None

    def note_change(self) -> None:
        """Wake the thread that waits, if what it waits for has come."""
        is_waiting = self._ready is not None
        if is_waiting:
            with self._changed:
                if self._ready is not None and self._ready():
                    self._changed.notify_all()
