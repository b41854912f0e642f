"""Threads that complete futures, and the end of the program, which waits for them.

A thread that is inside torch when the interpreter ends takes the process with it
(SIGABRT): it is told to go when it wants the GIL back, in the middle of C++.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ringleader.deadline import Deadline
from ringleader.groups.formation import close_open_groups

LINGER_S = 1.0
"""How long an idle thread stays before it ends."""
SETTLE_S = 2.0
"""How long the end of the program waits for what is attached to futures."""

_log = logging.getLogger(__name__)
Task = Callable[[], None]


class CompletionPool:
    """Threads that complete futures: as many as wait at the same time, started when
    needed. They are daemons: none keeps a program from ending for long.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._busy = 0
        """Tasks that are promised or under way."""
        self._idle = 0
        """Threads that wait for a task nobody has promised them yet."""
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._is_closed = False
        _alive.add(self)

    def run(self, task: Task) -> None:
        """Run it soon, in a thread where it may wait."""
        with self._lock:
            self._busy += 1
            is_promised = self._idle > 0
            if is_promised:
                self._idle -= 1
            self._tasks.put(task)
        if is_promised:
            return
        # Without arguments: a thread would keep them to its end.
        name = "ringleader-futures"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there may be no more of them
            self._do_next()

    def _work(self) -> None:
        while self._do_next():
            with self._lock:
                if self._is_closed:
                    return
                self._idle += 1

    def _do_next(self) -> bool:
        """False when there is nothing to do for us any more."""
        task = self._next()
        if task is None:
            return False
        try:
            task()
        except Exception:  # noqa: BLE001 - the others must hear of it, too
            _log.exception("a follower of a future failed")
        del task  # and with it a future, maybe: also that is a call of torch
        with self._lock:
            self._busy -= 1
            self._lock.notify_all()
        return True

    def _next(self) -> Task | None:
        while True:
            try:
                return self._tasks.get(timeout=LINGER_S)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return None

    def close(self) -> None:
        """End the threads as they become idle."""
        with self._lock:
            self._is_closed = True
            while self._idle:
                self._idle -= 1
                self._tasks.put(None)

    def settle(self, deadline: Deadline) -> None:
        """Return when no task is left, or it is too late."""
        with self._lock:
            self._lock.wait_for(lambda: not self._busy, deadline.left_s())


_alive: weakref.WeakSet[CompletionPool] = weakref.WeakSet()


@atexit.register
def _settle() -> None:
    """Nothing comes after groups are closed; what waits for one ends with it."""
    close_open_groups()
    deadline = Deadline.after(SETTLE_S)
    for each in list(_alive):
        each.settle(deadline)
