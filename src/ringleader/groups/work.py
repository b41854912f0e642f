"""Work: the handle of one operation."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from ringleader.deadline import Deadline
from ringleader.errors import RingleaderError
from ringleader.groups.caller_observer import installed

_log = logging.getLogger(__name__)


E = TypeVar("E", bound=BaseException)


def same_again(error: E) -> E:
    """An equal error with its own traceback, to be raised in another place."""
    if isinstance(error, RingleaderError):
        return type(error)(*error.args)
    return error


class Turn(Protocol):
    """The time between an operation and the next one; see callback_turns.py."""

    def run(self, callbacks: Callable[[], None]) -> None:
        """Run ``callbacks``; the operations that they call come before others."""
        ...


class Queue(Protocol):
    """What a work asks of the queue of its operation."""

    inherited: RingleaderError | None
    """Set in a forked process, where no operation of its parent ends."""

    def help_out(self, work: Work) -> None:
        """Run operations in this thread, which waits for ``work``.

        If no other thread does, this is faster than waking another.
        """
        ...

    def run_soon(self) -> None:
        """Postpone nothing any longer: somebody may wait without helping out."""
        ...

    def begin_turn(self) -> Turn | None:
        """Let callbacks run before the next operation.

        Only for a follower that the engine's thread calls; others get None.
        """
        ...


class Work:
    """A running operation. ``wait`` may be called from any thread, repeatedly."""

    def __init__(self, queue: Queue | None = None) -> None:
        self.queue = queue
        """Where it waits for earlier ones; None if it does not."""
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self.source: int | None = None
        """The sender of a received message."""
        self.copy_back: list[Callable[[], object]] = []
        """Copies into tensors that are not contiguous, made at the end."""
        self._followers: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Whether the operation has ended, with or without an error."""
        return self._finished.is_set()

    def error(self) -> BaseException | None:
        """The error it failed with; None while it runs and after success."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the operation has succeeded; raise the error it failed with.

        The operation has its own deadline, so this ends. ``timeout_s`` bounds only this
        wait, which then raises TimeoutError; the operation goes on.
        """
        if installed.observer is None or self._finished.is_set():
            self._wait(timeout_s)
        else:
            with installed.observer.waiting():
                self._wait(timeout_s)

    def _wait(self, timeout_s: float | None) -> None:
        deadline = Deadline.after(timeout_s) if timeout_s is not None else None
        if deadline and self.queue:
            self.queue.run_soon()
        while not self._finished.is_set():
            if self.queue and self.queue.inherited:
                raise same_again(self.queue.inherited)
            if deadline and deadline.is_over():
                raise TimeoutError(
                    f"the operation is still running after {timeout_s:.3g} s"
                )
            if self.queue and deadline is None:
                self.queue.help_out(self)
            if not self._finished.is_set():
                left_s = deadline.left_s() if deadline else 0.05
                self._finished.wait(min(left_s, 0.05))
        if self._error is not None:
            raise same_again(self._error)

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the operation as ended; called once, by the thread that ran it."""
        if error is None:
            for copy in self.copy_back:
                copy()
        self._error = error
        self._finished.set()
        self._call_followers()

    def when_done(self, follower: Callable[[], None]) -> None:
        """Call ``follower`` once the operation has ended; at once if it has already.

        It runs in the engine's thread, so it must be quick and must not wait.
        """
        self._followers.append(follower)
        if self._finished.is_set():
            self._call_followers()

    def _call_followers(self) -> None:
        """Call all followers, and raise then what a signal handler raised in one."""
        interruption: BaseException | None = None
        while self._followers:
            try:
                follower = self._followers.pop(0)
            except IndexError:  # another thread was faster
                break
            try:
                follower()
            except BaseException as exc:  # noqa: BLE001 - the other followers must run
                if threading.current_thread() is threading.main_thread():
                    # It may have interrupted the follower before its end, for which
                    # somebody may wait.
                    interruption = exc
                    self._call_again(follower)
                else:
                    _log.exception("a callback at the end of an operation failed")
        if interruption is not None:
            raise interruption

    def _call_again(self, follower: Callable[[], None]) -> None:
        try:
            follower()
        except BaseException:  # noqa: BLE001 - as above
            _log.exception("a callback at the end of an operation failed")


class DoneWork(Work):
    """The handle of a synchronous call, which has succeeded already."""

    def __init__(self) -> None:
        super().__init__()
        self._finished.set()


DONE = DoneWork()
