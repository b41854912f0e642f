"""Future: the result of a call that is on its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded
from ringleader.rpc import pool

Run = Callable[[Callable[[], None]], None]
"""Runs a callback in another thread."""


class Future:
    """The result of one call. Any thread may wait for it, any number of times.

    It is done by its deadline at the latest, with DeadlineExceeded.
    """

    def __init__(
        self, deadline: Deadline, run: Run, late: Callable[[], BaseException]
    ) -> None:
        """``late`` makes the error for a call that has passed its deadline."""
        self.deadline = deadline
        self._run = run
        self._late = late
        self._pending = threading.Lock()
        self._pending.acquire()
        self._guard = threading.Lock()
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future], object]] = []

    def done(self) -> bool:
        """Return whether there is a result or an error."""
        return self._is_done

    def wait(self) -> Any:  # noqa: ANN401
        """Return the result, or raise the error of the call."""
        if not self._is_done:
            if pool.is_worker():
                with pool.waiting():
                    self._await()
            else:
                self._await()
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the error would refer to its future, which refers to it
        return self._value

    def _await(self) -> None:
        if self._pending.acquire(timeout=self.deadline.left_s()):
            self._pending.release()
        else:
            self.expire()

    def expire(self) -> None:
        """Make the future done because its deadline has passed."""
        self.set_exception(self._late())

    def exception(self) -> BaseException | None:
        """Wait, and return the error of the call instead of raising it, or None."""
        try:
            self.wait()
        except Exception as exc:  # noqa: BLE001 - returned
            return exc
        return None

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        """Call ``callback`` with this future when it is done, in another thread."""
        with self._guard:
            if not self._is_done:
                self._callbacks.append(callback)
                return
        self._run(lambda: _call(callback, self))

    def then(self, callback: Callable[[Future], object]) -> Future:
        """Return a future of what ``callback`` returns; it gets this future.

        The callback has the time limit of the call once more.
        """
        limit_s = self.deadline.after_s
        latest_s = max(self.deadline.at_s, time.monotonic()) + limit_s

        def late() -> DeadlineExceeded:
            text = f"the callback of then() did not end within {limit_s:.3g} s"
            return DeadlineExceeded("this process", text)

        following = Future(Deadline(latest_s, limit_s), self._run, late)

        def follow(done: Future) -> None:
            try:
                following.set_result(callback(done))
            except Exception as exc:  # noqa: BLE001 - raised by wait()
                following.set_exception(exc)

        self.add_done_callback(follow)
        return following

    def set_result(self, value: object) -> None:
        """Make the future done, unless it is."""
        self._finish(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Make the future done with an error, unless it is done."""
        self._finish(None, error)

    def _finish(self, value: object, error: BaseException | None) -> None:
        with self._guard:
            if self._is_done:
                return
            self._value, self._error, self._is_done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
        self._pending.release()
        for callback in callbacks:
            self._run(lambda callback=callback: _call(callback, self))  # type: ignore[misc]


def _call(callback: Callable[[Future], object], future: Future) -> None:
    callback(future)
