"""The threads that run the functions which other ranks call.

At most ``size`` of them work at the same time. A thread that waits for the result of a
call of its own does not count: while it waits, another one may start in its stead. So
ranks that call each other back and forth do not run out of threads; only
``MAX_THREADS`` bounds the depth of such calls, and then their deadlines end them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ringleader.deadline import Deadline

Job = Callable[[], None]

MAX_THREADS = 512
LINGER_S = 5.0
"""Time that a thread without work stays."""

_current = threading.local()
_log = logging.getLogger(__name__)


@contextmanager
def waiting() -> Iterator[None]:
    """Around a wait for another rank: lets another thread of the pool work."""
    pool: Pool | None = getattr(_current, "pool", None)
    if pool is None:
        yield
        return
    pool.change_blocked(1)
    try:
        yield
    finally:
        pool.change_blocked(-1)


def is_worker() -> bool:
    """Return whether the caller is a thread of a pool."""
    return getattr(_current, "pool", None) is not None


class Pool:
    """Threads that start when they are needed."""

    def __init__(self, size: int, name: str, after_job: Job = lambda: None) -> None:
        self._size = size
        self._name = name
        self._after_job = after_job
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._num_queued = self._num_idle = self._num_blocked = 0
        self._is_stopped = False

    def submit(self, job: Job) -> None:
        """Run ``job`` in a thread of the pool; after ``stop`` never."""
        with self._lock:
            if self._is_stopped:
                return
            self._num_queued += 1
            self._jobs.put(job)
            self._start_needed()

    def change_blocked(self, by: int) -> None:
        """Count the threads that wait for other ranks."""
        with self._lock:
            self._num_blocked += by
            self._start_needed()

    def num_jobs(self) -> int:
        """Return how many jobs are queued or running."""
        with self._lock:
            return self._num_queued + len(self._threads) - self._num_idle

    def num_queued(self) -> int:
        """Return how many jobs wait for a thread."""
        return self._num_queued

    def _start_needed(self) -> None:
        working = len(self._threads) - self._num_blocked
        if (
            self._num_queued > self._num_idle
            and working < self._size
            and len(self._threads) < MAX_THREADS
            and not self._is_stopped
        ):
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.add(thread)
            self._num_idle += 1
            thread.start()

    def _work(self) -> None:
        _current.pool = self
        while (job := self._next()) is not None:
            try:
                job()
            except BaseException:  # noqa: BLE001 - the thread goes on, after exit(), too
                _log.exception("a job of the RPC threads failed")
            del job  # and the values that it holds
            with self._lock:
                self._num_idle += 1
            self._after_job()

    def _next(self) -> Job | None:
        """Return the next job; None if this thread shall end."""
        while True:
            job: Job | None = None
            with suppress(queue.Empty):
                job = self._jobs.get(timeout=LINGER_S)
            with self._lock:
                if self._is_stopped or (job is None and not self._num_queued):
                    self._num_idle -= 1
                    self._threads.discard(threading.current_thread())
                    return None
                if job is not None:
                    self._num_idle -= 1
                    self._num_queued -= 1
                    return job

    def stop(self, timeout_s: float) -> None:
        """Start no more jobs, and wait until the running ones have ended."""
        with self._lock:
            self._is_stopped = True
            threads = self._threads - {threading.current_thread()}
            for _ in threads:
                self._jobs.put(None)
        deadline = Deadline.after(timeout_s)
        for thread in threads:
            thread.join(deadline.left_s())
