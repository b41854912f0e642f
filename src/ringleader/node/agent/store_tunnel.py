"""The way from a worker to the store of its round, encrypted between the machines.

torch's TCPStore knows neither passwords nor encryption, so it listens on 127.0.0.1 of
the first machine only. On the others the agent listens on 127.0.0.1 as well and carries
every connection to the agent over there, which has proven who it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from ringleader.errors import PeerError
from ringleader.node.peering.peer_connection import Guest

BLOCK_BYTES = 64 << 10
HERE = "127.0.0.1"

Open = Callable[[], Awaitable[Guest]]


class Tunnel:
    """One listening socket here whose connections all lead to one store over there."""

    def __init__(self, open_guest: Open) -> None:
        self._open = open_guest
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen; the port to give to the workers."""
        self._server = await asyncio.start_server(self._accept, HERE, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            guest = await self._open()
        except PeerError:
            writer.close()  # the store is gone, and with it the round
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        else:
            await splice(reader, writer, guest)

    def close(self) -> None:
        """Stop listening and cut what is under way."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()


async def splice(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, guest: Guest
) -> None:
    """Carry bytes both ways until either side ends."""
    out = asyncio.create_task(_pour(reader, guest.writer))
    back = asyncio.create_task(_pour(guest.reader, writer))
    try:
        await asyncio.wait([out, back], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    finally:
        for task in (out, back):
            task.cancel()
        await asyncio.gather(out, back, return_exceptions=True)
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
        guest.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(BLOCK_BYTES):
            writer.write(block)
            await writer.drain()


async def serve_store(guest: Guest, port: int) -> None:
    """The far end: connect a guest with the store that listens here."""
    try:
        reader, writer = await asyncio.open_connection(HERE, port)
    except OSError:
        guest.close()  # the store is gone, and with it the round
        return
    await splice(reader, writer, guest)
