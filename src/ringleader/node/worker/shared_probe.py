"""``SharedProbe``: runs a user's checks beside an event loop, one run at a time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping

PROBE_S = 5.0
"""How long checks may take. Kubernetes itself waits for 1 s, unless told otherwise."""

Probe = Callable[[], Mapping[str, str]]
"""Returns what is wrong, by name; empty if nothing is. Does not raise."""


class SharedProbe:
    """All who ask at the same time share one run, so a check that hangs costs one
    thread, however often it is asked for. Use it from one loop."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._running: asyncio.Future[Mapping[str, str]] | None = None

    async def ask(self) -> Mapping[str, str]:
        """Return what is wrong; says so if the checks do not end in time."""
        if self._running is None or self._running.done():
            self._running = self._start()
        running = self._running
        await asyncio.wait([running], timeout=PROBE_S)
        if running.done():
            return running.result()
        return {"checks": f"did not end within {PROBE_S:g} s"}

    def _start(self) -> asyncio.Future[Mapping[str, str]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Mapping[str, str]] = loop.create_future()

        def work() -> None:
            found = self._probe()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(answer.set_result, found)

        # A daemon thread: asyncio's own threads would delay the end of the program.
        threading.Thread(target=work, name="health checks", daemon=True).start()
        return answer
