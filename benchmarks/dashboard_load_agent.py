"""A resident agent whose event loop is timed, for ``dashboard_load.py``.

It runs as ``ringleader up`` does. Each line on standard input is answered with the
longest callbacks of its event loop since the line before, as JSON.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import resource
import sys
import threading
import time
from typing import Any

from ringleader.node.agent.process import run_resident
from ringleader.node.protocol.agent_config import AgentConfig

NUM_LONGEST = 12

Seen = tuple[float, float, str]
"""Wall and processor time of a callback in seconds, and what it ran."""


class CallbackTimes:
    """The longest callbacks of the event loop since the last ``take``."""

    def __init__(self) -> None:
        self._longest: list[Seen] = []
        self._count = 0
        self._lock = threading.Lock()
        self._since_s = time.perf_counter()
        self._cpu_s = time.process_time()

    def install(self) -> None:
        """Time every callback of this process from now on."""
        run = asyncio.Handle._run

        def timed_run(handle: asyncio.Handle) -> None:
            callback = handle._callback  # type: ignore[attr-defined]
            cpu_s, wall_s = time.thread_time(), time.perf_counter()
            run(handle)
            wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
            self._note(wall_s, cpu_s, callback)

        setattr(asyncio.Handle, "_run", timed_run)  # noqa: B010 - mypy

    def _note(self, wall_s: float, cpu_s: float, callback: object) -> None:
        with self._lock:
            self._count += 1
            is_full = len(self._longest) >= NUM_LONGEST
            if is_full and wall_s <= self._longest[0][0]:
                return
            seen = (wall_s, cpu_s, describe(callback))
            if is_full:
                heapq.heapreplace(self._longest, seen)
            else:
                heapq.heappush(self._longest, seen)

    def take(self) -> dict[str, Any]:
        """Return what was seen since the last call."""
        with self._lock:
            found, self._longest = sorted(self._longest, reverse=True), []
            count, self._count = self._count, 0
        now_s, cpu_s = time.perf_counter(), time.process_time()
        seconds, busy_s = now_s - self._since_s, cpu_s - self._cpu_s
        self._since_s, self._cpu_s = now_s, cpu_s
        return {
            "seconds": round(seconds, 1),
            "callbacks": count,
            "share_of_a_core": round(busy_s / seconds, 3),
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "longest": [
                {"wall_ms": _ms(wall_s), "cpu_ms": _ms(cpu), "what": what}
                for wall_s, cpu, what in found
            ],
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def describe(callback: object) -> str:
    """Return what a handle ran: the coroutine of a task, or a function."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(callback, "__qualname__", callback))


def answer(times: CallbackTimes) -> None:
    """Answer each line."""
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(times.take()) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run ``dashboard_load_agent.py HOME PORT``."""
    times = CallbackTimes()
    times.install()
    threading.Thread(target=answer, args=(times,), daemon=True).start()
    config = AgentConfig(
        home=sys.argv[1],
        port=int(sys.argv[2]),
        name="here",
        interfaces=["lo"],
        profile="wifi",  # patient: the simulated machines share few cores
        uses_mdns=False,
        is_resident=True,
    )
    sys.exit(asyncio.run(run_resident(config)))


if __name__ == "__main__":
    main()
