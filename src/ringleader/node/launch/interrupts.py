"""``Interrupts``: the first Ctrl-C or SIGTERM ends a run in order, the second at once.

Python runs a signal handler only while the main thread is in the interpreter, and
torch's store may hold it in C++ for minutes. A thread therefore reads the signals as
well: it ends the process at the second one, and some time after the first.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Self

SIGNALS = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
)


class Interrupts:
    """Context in which signals end this process and its workers; for the main thread.

    ``workers`` returns the process ids of the workers that are alive; each leads a
    process group. The first signal raises what ``error`` makes of it, in the main
    thread; ``patience_s`` is the time for an orderly end.
    """

    def __init__(
        self,
        workers: Callable[[], Collection[int]],
        error: Callable[[signal.Signals], BaseException],
        patience_s: float,
    ) -> None:
        self._workers = workers
        self._error = error
        self._patience_s = patience_s
        self._received = 0
        self._previous: dict[int, Any] = {}
        self._wakeup_fd = -1
        self._ours, self._theirs = socket.socketpair()
        self._watcher = threading.Thread(
            target=self._watch, name="ringleader-signals", daemon=True
        )

    def __enter__(self) -> Self:
        self._theirs.setblocking(False)
        self._watcher.start()
        self._wakeup_fd = signal.set_wakeup_fd(
            self._theirs.fileno(), warn_on_full_buffer=False
        )
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._raise_once)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd)
        self._theirs.close()  # ends the watcher
        self._watcher.join()
        self._ours.close()

    def _raise_once(self, number: int, frame: FrameType | None) -> None:
        self._received += 1
        if self._received == 1:
            raise self._error(signal.Signals(number))

    def _watch(self) -> None:
        first = self._next_signal(None)
        if first is None:
            return
        second = self._next_signal(self._patience_s)
        if second is not None:
            self._end_now(second or first)

    def _next_signal(self, timeout_s: float | None) -> int | None:
        """Return the next of our signals, 0 after the timeout, None at the end."""
        while True:
            if not select.select([self._ours], [], [], timeout_s)[0]:
                return 0
            found = self._ours.recv(1)
            if not found:
                return None
            if found[0] in SIGNALS:
                return found[0]

    def _end_now(self, number: int) -> None:
        for pid in self._workers():
            with contextlib.suppress(OSError):
                if hasattr(os, "killpg"):
                    os.killpg(pid, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGTERM)
        os._exit(128 + number)
