"""Accepts connections, and limits their number and the time that each may waste.

uvicorn has no timer until the first response is sent, and its limit on concurrency
refuses honest requests. So connections are accepted here, and handed to uvicorn's own
protocol with timers added. When there are too many, one is dropped on which no worker
has shown its token, or else an idle one; among those, the one whose last response is
longest ago. That hits slow clients, because honest requests take milliseconds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_S = 10.0
"""Time for a request head, from its first byte or from connecting."""
HANDSHAKE_S = 5.0
STALL_S = 15.0
"""Longest time that a client may read nothing while there is something to send."""
MAX_CONNECTIONS = 256
MAX_PER_ADDRESS = 32
"""Enough for a household behind one router. Connections of this machine, such as those
of tunnels, are not limited."""
_REST_S = 0.05


class ConnectionAcceptor:
    """Accepts the connections of one listening socket, until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], LimitedProtocol],
        context: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._make = make_protocol
        self._context = context
        self._open: dict[LimitedProtocol, None] = {}
        self._handshaking: dict[asyncio.Task[None], str] = {}

    async def accept(self) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            try:
                sock, address = await loop.sock_accept(self._listener)
            except OSError:  # no descriptors are left, or the client is gone
                await asyncio.sleep(_REST_S)
                continue
            host = str(address[0])
            if self._make_room(host):
                self._start_connection(sock, host)
            else:
                sock.close()
            await asyncio.sleep(0)  # sock_accept does not yield while more are waiting

    async def close(self) -> None:
        """Cancel handshakes and drop all connections."""
        tasks = list(self._handshaking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for protocol in list(self._open):
            protocol.drop()

    def add(self, protocol: LimitedProtocol) -> None:
        """Add an established connection."""
        self._open[protocol] = None

    def remove(self, protocol: LimitedProtocol) -> None:
        """Remove a connection that has ended."""
        self._open.pop(protocol, None)

    def _start_connection(self, sock: socket.socket, host: str) -> None:
        task = asyncio.create_task(self._connect(sock))
        self._handshaking[task] = host
        task.add_done_callback(lambda done: self._handshaking.pop(done, None))

    async def _connect(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # it may have ended already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        more: dict[str, Any] = {}
        if self._context is not None:
            more = {"ssl": self._context, "ssl_handshake_timeout": HANDSHAKE_S}
        try:
            await loop.connect_accepted_socket(self._make, sock, **more)
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            sock.close()

    def _make_room(self, host: str) -> bool:
        """Return whether to accept a connection; drop another one for it if needed."""
        hosts = [p.host for p in self._open] + list(self._handshaking.values())
        mine = hosts.count(host)
        if mine >= MAX_PER_ADDRESS and not _is_loopback(host):
            return self._evict(host)
        return len(hosts) < MAX_CONNECTIONS or self._evict(None)

    def _evict(self, host: str | None) -> bool:
        """Drop the connection with the oldest response; a worker's only when idle."""
        droppable = [
            p
            for p in self._open
            if host in (None, p.host) and (p.is_idle or not p.is_worker)
        ]
        if droppable:
            min(droppable, key=lambda p: (p.is_worker, p.idle_since_s)).drop()
            return True
        for task, address in self._handshaking.items():
            if host in (None, address):
                del self._handshaking[task]
                task.cancel()
                return True
        return False


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with a timer for request heads and one for stalled readers."""

    acceptor: ConnectionAcceptor
    host = ""
    idle_since_s = 0.0
    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request head."""
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self.idle_since_s = time.monotonic()
        self.acceptor.add(self)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        super().connection_lost(exc)
        self.acceptor.remove(self)
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        self._stop_stall_timer()

    def data_received(self, data: bytes) -> None:
        """Start the timer with the first byte of a head; stop it at the head's end."""
        if self._head is None and self.is_idle:
            self._start_head_timer()
        super().data_received(data)
        if not self.is_idle:
            self._stop_head_timer()

    def on_response_complete(self) -> None:
        """Note the time; the timer of the next head starts with its first byte."""
        self.idle_since_s = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the timer for a client that does not read."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_S, self.drop)

    def resume_writing(self) -> None:
        """Stop that timer: the client reads again."""
        super().resume_writing()
        self._stop_stall_timer()

    @property
    def is_idle(self) -> bool:
        """True if no request is being handled."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def is_worker(self) -> bool:
        """True if the last request carried the token of a worker."""
        scope: Mapping[str, Any] | None = self.scope
        return scope is not None and "worker" in scope["state"]

    def drop(self) -> None:
        """Abort the connection, without sending what is still queued."""
        self.acceptor.remove(self)  # connection_lost comes only later
        self.transport.abort()

    def _start_head_timer(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(HEAD_S, self.drop)

    def _stop_head_timer(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_stall_timer(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
