"""``wait_for_end``: waits until a process of this machine has ended."""

from __future__ import annotations

import asyncio
import os

POLL_S = 0.1


async def wait_for_end(pid: int) -> None:
    """Return when the process ``pid`` has ended, also if nobody has reaped it."""
    if not hasattr(os, "pidfd_open"):
        await _poll(pid)
        return
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # an old kernel, or a sandbox that forbids it
        await _poll(pid)
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


async def _poll(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        except OSError:
            pass  # it exists and belongs to another user
        await asyncio.sleep(POLL_S)
