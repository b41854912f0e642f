"""``ConnectionRoom``: places for a few connections that nobody can occupy by silence.

For small servers of one request per connection. Whoever connects and says nothing keeps
a place until another one needs it: then the oldest silent connection goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class ConnectionRoom:
    """Lives on one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_open = 0
        self._silent: list[asyncio.Timeout] = []
        """The oldest first."""

    @contextmanager
    def place(self) -> Iterator[bool]:
        """Hold a place in this context; False: there is none, close the connection."""
        if self._num_open >= self._most:
            if not self._silent:
                yield False
                return
            self._silent.pop(0).reschedule(0.0)  # its time is over
        self._num_open += 1
        try:
            yield True
        finally:
            self._num_open -= 1

    @asynccontextmanager
    async def reading(self, within_s: float) -> AsyncIterator[None]:
        """Read the request in this context: ``TimeoutError`` if it does not come."""
        async with asyncio.timeout(within_s) as silent:
            self._silent.append(silent)
            try:
                yield
            finally:
                if silent in self._silent:
                    self._silent.remove(silent)
