"""EventLoop is the thread in which gRPC runs: one per process, for all its stars.

gRPC's asyncio interface expects one event loop per process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoop:
    """An asyncio loop in a daemon thread, which runs while somebody uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Start the thread if this is the first user."""
        with self._lock:
            self._num_users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run, args=(self._loop,), name="ringleader-grpc", daemon=True
                ).start()

    def leave(self) -> None:
        """End the thread after the last user. Any thread may call it."""
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0 and self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        assert self._loop is not None, "nobody has entered"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        loop.close()


event_loop = EventLoop()


def _forget() -> None:
    """In a forked child, which has no such thread."""
    event_loop.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
