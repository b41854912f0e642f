"""``StoreTunnel``: an encrypted path from workers to the TCPStore of their round.

torch's TCPStore knows neither passwords nor encryption, so it listens on 127.0.0.1 of
the first machine only. On the other machines the agent listens on 127.0.0.1 as well and
forwards each connection, over TLS, to the authenticated agent of the first machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from ringleader.errors import PeerError
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol import framing

BLOCK_BYTES = 64 << 10
LOOPBACK = "127.0.0.1"

Connect = Callable[[], Awaitable[PeerConnection]]


class StoreTunnel:
    """A listening socket whose connections all lead to one remote store."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.trouble = ""
        """Why the store could not be reached the last time."""

    async def listen(self) -> int:
        """Listen on 127.0.0.1 and return the port for the workers."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            connection = await self._connect()
        except PeerError as exc:
            self.trouble = str(exc)
            writer.close()  # the store is gone, and with it the round
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        else:
            await splice(reader, writer, connection)

    def close(self) -> None:
        """Stop listening and cut the open connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()


async def splice(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    connection: PeerConnection,
) -> None:
    """Copy bytes in both directions until either side ends."""
    out = asyncio.create_task(_copy(reader, connection.writer))
    back = asyncio.create_task(_copy(connection.reader, writer))
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
        connection.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(BLOCK_BYTES):
            framing.write(writer, block)
            await writer.drain()


async def serve_store(connection: PeerConnection, port: int) -> None:
    """Connect a remote node with the store that listens here at ``port``."""
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        connection.close()  # the store is gone, and with it the round
        return
    await splice(reader, writer, connection)
