"""PageServer: answers ``GET /metrics`` over plain HTTP, for Prometheus.

One small request, one answer, and the connection is closed. The number of connections,
the size of a request and its time are bounded: the oldest one that has not sent its
request goes for a new one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

from ringleader.connection_room import ConnectionRoom
from ringleader.errors import ConfigError
from ringleader.metrics.exposition import CONTENT_TYPE

PATH = "/metrics"
MAX_CONNECTIONS = 16
MAX_REQUEST_BYTES = 16 << 10
REQUEST_S = 5.0
ANSWER_S = 30.0
"""Limit for making the page and for a reader that is slow."""

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
}


class PageServer:
    """Serves one page, which ``make_page`` writes anew for every request."""

    def __init__(self, make_page: Callable[[], str]) -> None:
        self._make_page = make_page
        self._room = ConnectionRoom(MAX_CONNECTIONS)

    async def serve(
        self, sock: socket.socket, on_ready: Callable[[int], None] = lambda _port: None
    ) -> None:
        """Answer on a listening socket until cancelled."""
        server = await asyncio.start_server(
            self._on_connection, sock=sock, limit=MAX_REQUEST_BYTES
        )
        async with server:
            on_ready(sock.getsockname()[1])
            await server.serve_forever()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            with self._room.place() as has_place:
                if has_place:
                    async with asyncio.timeout(REQUEST_S + ANSWER_S):
                        writer.write(await self._answer(reader))
                        await writer.drain()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            pass  # a client that says nothing, or too much, or does not listen
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        async with self._room.reading(REQUEST_S):
            head = await reader.readuntil(b"\r\n\r\n")
        request, *fields = head.decode("latin-1").split("\r\n")
        status = _judge(request.split(" "), fields)
        if status != 200:
            return _response(status, f"{_PHRASES[status]}; GET {PATH} is here\n")
        try:
            page = await asyncio.to_thread(self._make_page)
        except ConfigError as exc:
            return _response(500, f"{exc}\n")
        return _response(200, page)


def _judge(request: list[str], fields: list[str]) -> int:
    """The status for a request line and its header fields."""
    if len(request) != 3 or not request[2].startswith("HTTP/1."):
        return 400
    for field in fields:
        name, _, host = field.partition(":")
        if name.lower() == "host" and not _is_own_name(host.strip()):
            return 403
    if request[0] != "GET":
        return 405
    return 200 if request[1].partition("?")[0] == PATH else 404


def _is_own_name(host: str) -> bool:
    """Whether a Host field names this machine, not a web page's own domain.

    A page in a browser could otherwise read the numbers by DNS rebinding.
    """
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.removeprefix("[").removesuffix("]").lower()
    own = socket.gethostname().lower()
    if name in ("localhost", own, f"{own}.local"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _response(status: int, text: str) -> bytes:
    body = text.encode()
    kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\n"
        f"Content-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
