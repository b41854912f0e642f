"""A pool of threads that complete futures, and the wait for them at exit.

A thread that is inside torch when the interpreter exits crashes the process (SIGABRT):
Python ends it when it asks for the GIL, in the middle of C++ code.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ringleader.deadline import Deadline
from ringleader.groups.group_registry import close_open_groups

LINGER_S = 1.0
"""How long an idle thread waits for a task before it ends."""
SETTLE_S = 2.0
"""How long the exit of the program waits for callbacks of futures."""

_log = logging.getLogger(__name__)
Task = Callable[[], None]


class CompletionPool:
    """A pool of daemon threads, one per running task, started when needed.

    Tasks may block. No task delays the exit of the program by more than SETTLE_S.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._busy = 0
        """Tasks that are queued or running."""
        self._idle = 0
        """Threads that wait and have no queued task assigned."""
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._is_closed = False
        _alive.add(self)

    def run(self, task: Task) -> None:
        """Run ``task`` in a thread of the pool, where it may block."""
        with self._lock:
            self._busy += 1
            has_thread = self._idle > 0
            if has_thread:
                self._idle -= 1
            self._tasks.put(task)
        if has_thread:
            return
        # Without arguments: a thread keeps a reference to them until it ends.
        name = "ringleader-futures"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system allows no more threads
            self._do_next()

    def _work(self) -> None:
        while self._do_next():
            with self._lock:
                if self._is_closed:
                    return
                self._idle += 1

    def _do_next(self) -> bool:
        """Run the next task; return False if this thread is to end."""
        task = self._next()
        if task is None:
            return False
        try:
            task()
        except Exception:  # noqa: BLE001 - the thread goes on with other tasks
            _log.exception("a callback of a future failed")
        del task  # before _busy: dropping a future calls torch, too
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
        """Let every thread end when it becomes idle."""
        with self._lock:
            self._is_closed = True
            while self._idle:
                self._idle -= 1
                self._tasks.put(None)

    def settle(self, deadline: Deadline) -> None:
        """Return when no task is left, or at the deadline."""
        with self._lock:
            self._lock.wait_for(lambda: not self._busy, deadline.left_s())


_alive: weakref.WeakSet[CompletionPool] = weakref.WeakSet()


@atexit.register
def _settle() -> None:
    """Close all groups, which ends all operations, and wait for the callbacks."""
    close_open_groups()
    deadline = Deadline.after(SETTLE_S)
    for each in list(_alive):
        each.settle(deadline)
