"""``BrokenServers``: learns that gRPC's asyncio server has ended by itself.

One call whose path is no text ends it (grpcio 1.85.1): the path is decoded in the loop
that accepts calls. Anybody who can connect may send one, so whoever runs such a server
stops it then and starts another. Nobody waits for that loop, and
``wait_for_termination`` goes on, so its error reaches the event loop only, when the
garbage collector finds its task. So it is also tried whether the port still answers.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

CHECK_S = 1.0
_ACCEPTING = "_server_main_loop"
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class BrokenServers:
    """Notes that the server of an event loop has ended by itself; one per loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._before = loop.get_exception_handler()
        self._is_broken = asyncio.Event()
        loop.set_exception_handler(self._note)

    async def next(self, host: str, port: int) -> None:
        """Wait until the server on this port has ended by itself."""
        while True:
            try:
                async with asyncio.timeout(CHECK_S):
                    await self._is_broken.wait()
            except TimeoutError:
                if not await _is_refused(_LOOPBACK.get(host, host), port):
                    continue
            self._is_broken.clear()
            return

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if _is_of_accepting(context.get("exception")):
            self._is_broken.set()
        elif self._before is not None:
            self._before(loop, context)
        else:
            loop.default_exception_handler(context)


async def _is_refused(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.close()
    return False


def _is_of_accepting(error: BaseException | None) -> bool:
    if not isinstance(error, UnicodeDecodeError):
        return False
    return traceback.extract_tb(error.__traceback__)[-1].name.endswith(_ACCEPTING)
