"""LeaveRequest: takes SIGTERM as a request to leave the run after the step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self


class LeaveRequest:
    """Turns the first SIGTERM into ``is_set()``; the second one ends the process.

    Only the main thread can catch signals; in another one, ``is_set()`` stays False
    unless ``set`` is called.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._before: signal._HANDLER = None
        self._is_installed = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            self._is_installed = True
        return self

    def is_set(self) -> bool:
        """Return whether this process was asked to leave."""
        return self._is_set

    def set(self) -> None:
        """Ask this process to leave, as SIGTERM does."""
        self._is_set = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._is_set = True
        signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *_: object) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_installed and is_main:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
            self._is_installed = False
