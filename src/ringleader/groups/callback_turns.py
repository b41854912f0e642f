"""The turn of an operation's callbacks: it ends before the next operation begins.

Callbacks of a future run in another thread, and may call further operations: torch's
PowerSGD, a hook of DistributedDataParallel that sends in rounds, does. Their calls and
those of the program would come in another order on every rank. So the thread that has
run such an operation runs what its callbacks call, until they have ended, and only then
goes on with the queue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident

from ringleader.deadline import Deadline
from ringleader.groups.job import Job
from ringleader.groups.work import Work

_log = logging.getLogger(__name__)

TURN_S = 60.0
"""How long callbacks may take between two calls. After that the queue goes on: a
callback may wait for what the program does later."""


class CallbackTurn:
    """What the callbacks of one operation call.

    ``outer`` is the turn in which that operation was called, ``queue`` that of the
    group, and ``wake`` wakes the thread that serves this turn.
    """

    def __init__(
        self, outer: CallbackTurn | None, queue: deque[Job], wake: Callable[[], None]
    ) -> None:
        self.outer = outer
        self.thread = 0
        """The thread of the callbacks, once they have begun."""
        self.jobs: deque[Job] = deque()
        self.is_over = False
        """Whether later calls of the callbacks come after what is queued."""
        self._queue, self._wake = queue, wake
        self._lock = threading.Lock()

    def run(self, callbacks: Callable[[], None]) -> None:
        """Run the callbacks in this thread."""
        self.thread = get_ident()
        try:
            callbacks()
        finally:
            self.end()

    def add(self, job: Job) -> None:
        """Let the thread that serves this turn run ``job``, or the queue afterwards."""
        with self._lock:
            (self._queue if self.is_over else self.jobs).append(job)
        self._wake()

    def end(self) -> None:
        """Let the queue go on after the jobs that were added."""
        with self._lock:
            self.is_over = True
        self._wake()


class CallbackTurns:
    """The turns of one group: of an operation, of one its callbacks call, and so on."""

    def __init__(self, queue: deque[Job], wake: Callable[[], None]) -> None:
        self._queue, self._wake = queue, wake
        self._innermost: CallbackTurn | None = None
        self._finishing = 0
        """The thread that has run an operation and tells who waits for it."""

    def here(self) -> CallbackTurn | None:
        """The turn whose callbacks this thread runs."""
        turn, me = self._innermost, get_ident()
        while turn is not None and turn.thread != me:
            turn = turn.outer
        return turn

    def begin(self) -> CallbackTurn | None:
        """Begin the turn of the operation that has ended just now in this thread.

        Returns None if this thread has run none: then there is no order to keep.
        """
        if self._finishing != get_ident():
            return None
        self._innermost = CallbackTurn(self._innermost, self._queue, self._wake)
        return self._innermost

    def finish(
        self, work: Work, run: Callable[[Job], None], pause: Callable[[], bool]
    ) -> None:
        """End a successful operation, and run what its callbacks call.

        ``pause`` waits a moment, and returns whether the group goes on.
        """
        outer = self._innermost
        self._finishing = get_ident()
        try:
            work.finish()
        finally:  # other ranks wait for what was called, whatever a signal raises here
            self._finishing = 0
            self._serve_inner(outer, run, pause)

    def _serve_inner(
        self,
        outer: CallbackTurn | None,
        run: Callable[[Job], None],
        pause: Callable[[], bool],
    ) -> None:
        """Run what callbacks call in turns inside of ``outer``, and end these."""
        while (turn := self._innermost) is not None and turn is not outer:
            try:
                _serve(turn, run, pause)
            finally:  # jobs are left by Ctrl-C alone
                turn.end()
                self._innermost = turn.outer
                self._queue.extendleft(reversed(turn.jobs))


def _serve(
    turn: CallbackTurn, run: Callable[[Job], None], pause: Callable[[], bool]
) -> None:
    limit = Deadline.after(TURN_S)
    while turn.jobs or not turn.is_over:
        if turn.jobs:
            run(turn.jobs.popleft())
            limit = Deadline.after(TURN_S)
        elif limit.is_over():
            text = "ringleader: a callback of a future takes over %g s; others go on"
            _log.warning(text, TURN_S)
            turn.end()
        elif not pause():
            turn.end()
