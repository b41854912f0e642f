"""``HealthServer``: answers ``GET /healthz`` and ``GET /readyz``, in its own thread.

Made for probes: one small request, one answer, and the connection is closed. The number
of connections, the size of a request and its time are bounded. The standard gRPC health
service gives the same answers, on a port of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future

from ringleader.connection_room import ConnectionRoom
from ringleader.deadline import OWN_PROCESS_S
from ringleader.node.protocol.node_addresses import is_loopback
from ringleader.node.worker.shared_probe import Probe, SharedProbe
from ringleader.transport.listening_socket import listen

MAX_CONNECTIONS = 32
MAX_REQUEST_BYTES = 8 << 10
REQUEST_S = 5.0
CLOSE_S = 5.0

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class HealthServer:
    """A server for probes. Any thread may start and close it."""

    def __init__(self, probes: Mapping[str, Probe], host: str = "127.0.0.1") -> None:
        """``probes`` maps ``/healthz`` and ``/readyz`` to what they ask."""
        self._probes = probes
        self._host = host
        self.port = 0
        """Port of HTTP; 0 while it is not open."""
        self.grpc_port = 0
        """Port of gRPC; 0 while it is not open."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._room = ConnectionRoom(MAX_CONNECTIONS)

    def start(self, port: int | None, grpc_port: int | None) -> None:
        """Listen on these ports, 0 for any; None: not at all.

        Raises ``ConfigError`` if a port is taken, or gRPC is not installed.
        """
        if port is None and grpc_port is None:
            return
        opened: Future[None] = Future()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(port, grpc_port, opened)),
            name="health server",
            daemon=True,
        )
        self._thread.start()
        opened.result(OWN_PROCESS_S)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._ended.set)
            thread.join(CLOSE_S)

    async def _serve(
        self, port: int | None, grpc_port: int | None, opened: Future[None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        shared = {path: SharedProbe(probe) for path, probe in self._probes.items()}
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._forget_ports)
            try:
                if port is not None:
                    stack.callback((await self._open_http(port, shared)).close)
                if grpc_port is not None:
                    stop = await self._open_grpc(grpc_port, shared)
                    stack.push_async_callback(stop)
            except BaseException as exc:  # noqa: BLE001 - start() raises it
                opened.set_exception(exc)
                return
            opened.set_result(None)
            await self._ended.wait()

    def _forget_ports(self) -> None:
        self.port = self.grpc_port = 0

    async def _open_http(
        self, port: int, shared: Mapping[str, SharedProbe]
    ) -> asyncio.Server:
        sock = listen(self._host, port)
        self.port = sock.getsockname()[1]
        return await asyncio.start_server(
            lambda reader, writer: self._on_connection(shared, reader, writer),
            sock=sock,
            limit=MAX_REQUEST_BYTES,
        )

    async def _open_grpc(
        self, port: int, shared: Mapping[str, SharedProbe]
    ) -> Callable[[], Awaitable[None]]:
        from ringleader.coordinator.health_service import serve_health

        services = {
            "": shared["/readyz"].ask,
            "readiness": shared["/readyz"].ask,
            "liveness": shared["/healthz"].ask,
        }
        listen(self._host, port).close()  # gRPC does not say why it cannot
        self.grpc_port, stop = await serve_health(self._host, port, services)
        return stop

    async def _on_connection(
        self,
        shared: Mapping[str, SharedProbe],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            with self._room.place() as has_place:
                if has_place:
                    async with asyncio.timeout(2 * REQUEST_S):
                        writer.write(await self._answer(shared, reader))
                        await writer.drain()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            pass  # a probe that says nothing, or does not listen
        finally:
            writer.close()

    async def _answer(
        self, shared: Mapping[str, SharedProbe], reader: asyncio.StreamReader
    ) -> bytes:
        async with self._room.reading(REQUEST_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response(400, {"status": "not an HTTP request"})
        if method not in (b"GET", b"HEAD"):
            return _response(405, {"status": "use GET"})
        probe = shared.get(target.partition(b"?")[0].decode("latin-1"))
        if probe is None:
            paths = ", ".join(self._probes)
            return _response(404, {"status": f"not here; there are {paths}"})
        response = self._verdict(await probe.ask())
        if method == b"HEAD":
            return response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        return response

    def _verdict(self, failures: Mapping[str, str]) -> bytes:
        if not failures:
            return _response(200, {"status": "ok"})
        # Reasons are for people on this machine; others get the names only.
        shown = failures if is_loopback(self._host) else sorted(failures)
        return _response(503, {"status": "failed", "failed": shown})


def _response(status: int, content: Mapping[str, object]) -> bytes:
    body = json.dumps(content).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
