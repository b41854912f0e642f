"""SendingThread works for one link beside the engine's thread, where a core is idle."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

IDLE_S = 1.0
"""The thread ends after this long without work; the next work starts another."""

END_S = 5.0
"""Limit of the wait for its end; the work itself never waits."""


class SendingThread:
    """Runs ``work``, which never waits and keeps its errors to itself, when asked to.

    One thread asks. While ``is_busy``, only the thread here touches what work touches.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._orders: SimpleQueue[bool] = SimpleQueue()
        """True: work; False: end."""
        self._idle = threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @property
    def is_busy(self) -> bool:
        """True from ``start`` until the work is done."""
        return not self._idle.is_set()

    def start(self) -> None:
        """Begin to work; it must not be busy."""
        self._idle.clear()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="ringleader-send", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # too many threads, or the interpreter ends
                    self._work()
                    self._idle.set()
                    return
                self._thread = thread
            self._orders.put(True)

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when it is not busy, or after ``timeout_s``."""
        if os.getpid() == self._process:  # a fork has no thread, perhaps held locks
            self._idle.wait(timeout_s)

    def close(self) -> None:
        """End the thread, after its work. Idempotent."""
        if os.getpid() != self._process:
            return
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._orders.put(False)
        if thread is not None:
            thread.join(END_S)

    def _run(self) -> None:
        while self._has_order():
            self._work()
            self._idle.set()

    def _has_order(self) -> bool:
        """Wait for the next order; return False if this thread is to end."""
        while True:
            try:
                return self._orders.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if self._orders.empty():
                        self._thread = None
                        return False
