"""The handle of one operation."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ringleader.deadline import Deadline
from ringleader.errors import RingleaderError

_log = logging.getLogger(__name__)


def same_again(error: BaseException) -> BaseException:
    """An equal error to raise from another place: its own traceback, the same text."""
    if isinstance(error, RingleaderError):
        return type(error)(*error.args)
    return error


class Work:
    """An operation under way. ``wait`` may be called from any thread, repeatedly.

    ``help_out`` lets the waiting thread do the work itself when nobody else does, which
    is faster than waking another.
    """

    def __init__(self, help_out: Callable[[Work], None] | None = None) -> None:
        self._help = help_out
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self.source: int | None = None
        """The sender of a received message."""
        self.copy_back: list[Callable[[], object]] = []
        """Copies back into tensors that were not contiguous."""
        self._followers: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._finished.is_set()

    def error(self) -> BaseException | None:
        """Why it failed; None while under way and after success."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when it has succeeded, raise what it failed with.

        The operation has its own deadline, so this ends; ``timeout_s`` only bounds this
        wait (TimeoutError) and leaves the operation alone.
        """
        deadline = Deadline.after(timeout_s) if timeout_s is not None else None
        while not self._finished.is_set():
            if deadline and deadline.is_over():
                raise TimeoutError(
                    f"the operation is still under way after {timeout_s:.3g} s"
                )
            if self._help and deadline is None:
                self._help(self)
            if not self._finished.is_set():
                left_s = deadline.left_s() if deadline else 0.05
                self._finished.wait(min(left_s, 0.05))
        if self._error is not None:
            raise same_again(self._error)

    def finish(self, error: BaseException | None = None) -> None:
        """The operation has ended; called once, by whoever ran it."""
        if error is None:
            for copy in self.copy_back:
                copy()
        self._error = error
        self._finished.set()
        self._call_followers()

    def when_done(self, follower: Callable[[], None]) -> None:
        """Call ``follower`` once when it has ended, at once if it has already.

        It runs in the engine's thread: it must be quick and never wait.
        """
        self._followers.append(follower)
        if self._finished.is_set():
            self._call_followers()

    def _call_followers(self) -> None:
        while self._followers:
            try:
                follower = self._followers.pop(0)
            except IndexError:  # another thread was faster
                return
            try:
                follower()
            except Exception:  # noqa: BLE001 - the others must hear of it, too
                _log.exception("what waited for an operation failed")


class DoneWork(Work):
    """What a synchronous call returns: it has succeeded already."""

    def __init__(self) -> None:
        super().__init__()
        self._finished.set()


DONE = DoneWork()
