"""``BackgroundTasks``: the tasks of an agent that run until they end or it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field


@dataclass(slots=True)
class BackgroundTasks:
    """Holds running tasks: asyncio itself has only weak references."""

    on_failure: Callable[[BaseException], None]
    """Called with the error of a task that failed: that must not go unnoticed."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a task until it ends or ``cancel`` is called."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_failure(error)

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
