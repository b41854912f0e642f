"""Accepts connections, and limits their number and the time that each may waste.

uvicorn has no timer until the first response is sent, and its limit on concurrency
refuses honest requests. So connections are accepted here, and handed to uvicorn's own
protocol with timers added. When there are too many, a stranger's is dropped: the
oldest unfinished TLS handshake, or else the connection whose last response is longest
ago. That hits slow clients, because honest requests take milliseconds. A connection on
which a worker joined or showed its token is never dropped for a new one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ringleader.paramserver.server.http.client_network import is_loopback
from ringleader.paramserver.server.http.waiting_connections import (
    Pace,
    WaitingConnections,
)

HEAD_S = 10.0
"""Time for a request head, from its first byte or from connecting."""
HANDSHAKE_S = 5.0
STALL_S = 15.0
"""Longest time that a client may read nothing while there is something to send."""
MAX_CONNECTIONS = 256
MAX_HANDSHAKES = 64
"""TLS handshakes under way; each takes a quarter of a megabyte."""
MAX_PER_ADDRESS = 32
"""Connections of strangers from one address: enough for a household behind one router.
Those of this machine, such as those of tunnels, are not limited."""
MAX_PER_WORKER = 3
"""Connections of one worker that are never dropped for others: it sends at most three
requests at a time. With 64 workers, a quarter of all connections is left for others."""
_TLS_PER_S = 50.0
_PLAIN_PER_S = 500.0
"""Connections per second that begin, with and without TLS: so many take a tenth of a
core, which leaves the rest for the requests of workers."""
_BURST = 64.0


class ConnectionAcceptor:
    """Accepts the connections of one listening socket, until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], LimitedProtocol],
        context: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._make = make_protocol
        self._context = context
        self._open: dict[LimitedProtocol, None] = {}
        self._waiting = WaitingConnections(listener, HEAD_S)
        self._handshaking: dict[LimitedProtocol, asyncio.Task[None]] = {}

    async def accept(self) -> None:
        """Accept connections until cancelled."""
        self._waiting.start()
        turns = Pace(_TLS_PER_S if self._context else _PLAIN_PER_S, burst=_BURST)
        while True:
            await turns.take()
            sock, host = await self._waiting.next()
            if self._make_room(host):
                self._start_connection(sock, host)
            else:
                sock.close()

    async def close(self) -> None:
        """Cancel handshakes and drop all connections."""
        self._waiting.close()
        tasks = list(self._handshaking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for protocol in list(self._open):
            protocol.drop()

    def add(self, protocol: LimitedProtocol) -> None:
        """Add an established connection, whose handshake is over."""
        self._handshaking.pop(protocol, None)
        self._open[protocol] = None

    def remove(self, protocol: LimitedProtocol) -> None:
        """Remove a connection that has ended."""
        self._open.pop(protocol, None)

    def protect(self, protocol: LimitedProtocol, worker: str) -> None:
        """Never drop this connection of ``worker`` for a new one.

        If the worker has more than its share, the one with the oldest response loses
        that protection.
        """
        if protocol.worker == worker:
            return
        self._waiting.prefer(protocol.host)
        protocol.worker = worker
        others = [p for p in self._open if p.worker == worker and p is not protocol]
        if len(others) >= MAX_PER_WORKER:
            min(others, key=lambda p: (not p.is_idle, p.idle_since_s)).worker = None

    def unprotect(self, protocol: LimitedProtocol, worker: str) -> None:
        """Treat the connections of ``worker`` as a stranger's; this is one of them."""
        gone = {protocol, *(p for p in self._open if p.worker == worker)}
        for each in gone:
            each.worker = None
        kept = {p.host for p in self._open if p.worker is not None}
        for host in {p.host for p in gone} - kept:
            self._waiting.forget(host)

    def _start_connection(self, sock: socket.socket, host: str) -> None:
        protocol = self._make()
        protocol.host = host
        task = asyncio.create_task(self._connect(sock, protocol))
        self._handshaking[protocol] = task
        task.add_done_callback(lambda _: self._end_handshake(sock, protocol))

    def _end_handshake(self, sock: socket.socket, protocol: LimitedProtocol) -> None:
        self._handshaking.pop(protocol, None)
        if protocol not in self._open:  # it failed, or was cancelled before it began
            sock.close()

    async def _connect(self, sock: socket.socket, protocol: LimitedProtocol) -> None:
        with suppress(OSError):  # it may have ended already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        more: dict[str, Any] = {}
        with suppress(OSError):  # ssl.SSLError is one
            if self._context is not None:
                more = {"ssl": self._context(), "ssl_handshake_timeout": HANDSHAKE_S}
            await loop.connect_accepted_socket(lambda: protocol, sock, **more)

    def _make_room(self, host: str) -> bool:
        """Return whether to accept a connection; drop another one for it if needed."""
        strangers = [p.host for p in self._open if p.worker is None]
        mine = [*strangers, *(p.host for p in self._handshaking)].count(host)
        if mine >= MAX_PER_ADDRESS and not is_loopback(host):
            return self._evict(host)
        is_full = (
            len(self._handshaking) >= MAX_HANDSHAKES
            or len(self._open) + len(self._handshaking) >= MAX_CONNECTIONS
        )
        return not is_full or self._evict(None)

    def _evict(self, host: str | None) -> bool:
        """Drop a stranger's connection; return False if all belong to workers."""
        hosts = Counter(p.host for p in self._handshaking)
        if hosts[host] if host else hosts:
            busiest = host or hosts.most_common(1)[0][0]
            oldest = next(p for p in self._handshaking if p.host == busiest)
            self._handshaking.pop(oldest).cancel()
            return True
        strangers = [
            p for p in self._open if p.worker is None and host in (None, p.host)
        ]
        if not strangers:
            return False
        min(strangers, key=lambda p: p.idle_since_s).drop()
        return True


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with a timer for request heads and one for stalled readers."""

    acceptor: ConnectionAcceptor
    host = ""
    idle_since_s = 0.0
    worker: str | None = None
    """The worker that joined or showed its token on this connection."""
    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request head."""
        super().connection_made(transport)
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

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed data, and end the request that it belongs to, if any.

        If the response has begun, no other can be sent, so the connection is dropped.
        uvicorn would raise here, or the application in its next send; both are logged.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.drop()

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


def mark_worker(request: Request, worker: str) -> None:
    """Note that the connection of a request belongs to a worker."""
    protocol: LimitedProtocol = request.state.connection
    protocol.acceptor.protect(protocol, worker)


def unmark_worker(request: Request, worker: str) -> None:
    """Note that a worker, which sent this request, no longer takes part."""
    protocol: LimitedProtocol = request.state.connection
    protocol.acceptor.unprotect(protocol, worker)
