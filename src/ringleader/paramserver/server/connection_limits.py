"""Connections: how many there may be, how long a head may take, who must go first.

uvicorn has no timer until the first answer is sent, and its limit on concurrency turns
honest requests away. So connections are accepted here, and handed to uvicorn's own
protocol with timers around it. When all places are taken, a connection goes on which no
worker has shown its token, or else one that asks for nothing; among them, the one whose
last answer is longest ago: slow ones lose, honest ones take milliseconds.
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
"""From the first byte of a head, or from connecting, to its end."""
HANDSHAKE_S = 5.0
STALL_S = 15.0
"""How long the other side may read nothing while we have something to send."""
MAX_CONNECTIONS = 256
MAX_PER_ADDRESS = 32
"""Families behind one router; tunnels come from this machine and are not counted."""
_REST_S = 0.05


class ConnectionAcceptor:
    """Accepts connections on one listening socket, until it is closed."""

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
        """Take connections in until cancelled."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            try:
                sock, address = await loop.sock_accept(self._listener)
            except OSError:  # out of descriptors, or it went away before we came
                await asyncio.sleep(_REST_S)
                continue
            host = str(address[0])
            if self._make_room(host):
                self._start_connection(sock, host)
            else:
                sock.close()
            await asyncio.sleep(0)  # accepting does not yield while more are waiting

    async def close(self) -> None:
        """End what is still between accept and protocol."""
        tasks = list(self._handshaking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for protocol in list(self._open):
            protocol.drop()

    def add(self, protocol: LimitedProtocol) -> None:
        """A connection is up."""
        self._open[protocol] = None

    def remove(self, protocol: LimitedProtocol) -> None:
        """A connection is over."""
        self._open.pop(protocol, None)

    def _start_connection(self, sock: socket.socket, host: str) -> None:
        task = asyncio.create_task(self._connect(sock))
        self._handshaking[task] = host
        task.add_done_callback(lambda done: self._handshaking.pop(done, None))

    async def _connect(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # over by now
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
        """Whether one more may come in, perhaps in place of another."""
        hosts = [p.host for p in self._open] + list(self._handshaking.values())
        mine = hosts.count(host)
        if mine >= MAX_PER_ADDRESS and not _is_here(host):
            return self._evict(host)
        return len(hosts) < MAX_CONNECTIONS or self._evict(None)

    def _evict(self, host: str | None) -> bool:
        """Drop who has kept a place for longest; a worker only when it is idle."""
        loose = [
            p
            for p in self._open
            if host in (None, p.host) and (p.is_idle or not p.is_worker)
        ]
        if loose:
            min(loose, key=lambda p: (p.is_worker, p.idle_since_s)).drop()
            return True
        for task, whose in self._handshaking.items():
            if host in (None, whose):
                del self._handshaking[task]
                task.cancel()
                return True
        return False


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with a timer for heads and one for readers that stall."""

    acceptor: ConnectionAcceptor
    host = ""
    idle_since_s = 0.0
    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The clock for the first head begins to run."""
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self.idle_since_s = time.monotonic()
        self.acceptor.add(self)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives its connection."""
        super().connection_lost(exc)
        self.acceptor.remove(self)
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        self._stop_stall_timer()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head do not reset its timer; a whole head stops it."""
        if self._head is None and self.is_idle:
            self._start_head_timer()
        super().data_received(data)
        if not self.is_idle:
            self._stop_head_timer()

    def on_response_complete(self) -> None:
        """Idle again; the next head has its own time, from its first byte."""
        self.idle_since_s = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The other side does not read as fast as we send."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_S, self.drop)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._stop_stall_timer()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def is_worker(self) -> bool:
        """Whether the last request here came with the token of a worker."""
        scope: Mapping[str, Any] | None = self.scope
        return scope is not None and "worker" in scope["state"]

    def drop(self) -> None:
        """End the connection at once, whatever is still to be sent."""
        self.acceptor.remove(self)  # the loop tells us of the end only later
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


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
