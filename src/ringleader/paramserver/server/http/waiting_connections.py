"""Accepts connections, which then wait: for their first byte, and for their turn.

A stranger can open thousands of connections in a second. So until the first byte of
one arrives, it is a bare socket, and only few are kept; the oldest goes first. Then it
waits for its turn, because a TLS handshake costs the server a hundred times more than
the stranger: addresses take turns, and every second turn is for those with workers.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ringleader.paramserver.server.http.client_network import network_of

MAX_SILENT = 64
"""Connections on which nothing has arrived. An honest client sends at once."""
MAX_READY = 128
"""Connections that wait for their turn."""
_MAX_KNOWN = 256
_ACCEPTS_PER_S = 2000.0
"""Others wait in the system. So many silent ones take a tenth of a core."""
_AT_ONCE = 16
_REST_S = 0.05


@dataclass(slots=True)
class Pace:
    """A token bucket for one event loop."""

    per_s: float
    burst: float
    _left: float = field(init=False)
    _then_s: float = 0.0

    def __post_init__(self) -> None:
        self._left = self.burst

    def wait_s(self, now_s: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        grown = self._left + (now_s - self._then_s) * self.per_s
        self._left, self._then_s = min(self.burst, grown), now_s
        if self._left < 1.0:
            return (1.0 - self._left) / self.per_s
        self._left -= 1.0
        return 0.0

    async def take(self) -> None:
        """Wait for a token, and take it. Only one task may do so."""
        if wait_s := self.wait_s(time.monotonic()):
            await asyncio.sleep(wait_s)
            self.wait_s(time.monotonic())


class WaitingConnections:
    """Accepts the connections of a listening socket, and holds those that wait."""

    def __init__(self, listener: socket.socket, silent_s: float) -> None:
        self._listener = listener
        self._accepts = Pace(_ACCEPTS_PER_S, burst=_ACCEPTS_PER_S * _REST_S)
        self._pause: asyncio.TimerHandle | None = None
        self._silent_s = silent_s
        self._silent: dict[socket.socket, tuple[str, float]] = {}
        self._ready: OrderedDict[str, deque[socket.socket]] = OrderedDict()
        self._num_ready = 0
        self._known: OrderedDict[str, None] = OrderedDict()
        self._was_known = False
        self._has_ready = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept connections."""
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        self._pause = None

    def _accept(self) -> None:
        """Accept some connections; pause if there are too many, or no descriptors."""
        wait_s = 0.0
        for _ in range(_AT_ONCE):
            wait_s = self._accepts.wait_s(time.monotonic())
            if wait_s:
                break
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptors are left, or the client is gone
                wait_s = _REST_S
                break
            sock.setblocking(False)
            self._add(sock, network_of(str(address[0])))
        if wait_s:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            self._pause = loop.call_later(max(wait_s, _REST_S), self.start)

    def _add(self, sock: socket.socket, host: str) -> None:
        """Wait for the first byte of a new connection from ``host``."""
        if len(self._silent) >= MAX_SILENT:
            self._close_silent(next(iter(self._silent)))
        loop = asyncio.get_running_loop()
        self._silent[sock] = host, time.monotonic()
        loop.add_reader(sock, self._arrived, sock)
        if self._expiry is None:
            self._expiry = loop.call_later(self._silent_s, self._expire)

    def prefer(self, host: str) -> None:
        """Give every second turn to such hosts, because a worker is at ``host``."""
        self._known[host] = None
        self._known.move_to_end(host)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def forget(self, host: str) -> None:
        """Treat connections from ``host`` as a stranger's again."""
        self._known.pop(host, None)

    async def next(self) -> tuple[socket.socket, str]:
        """Wait for the next connection whose turn it is; return it and its address."""
        while not self._ready:
            self._has_ready.clear()
            await self._has_ready.wait()
        wanted = (h for h in self._ready if (h in self._known) != self._was_known)
        host = next(wanted, None) or next(iter(self._ready))
        self._was_known = host in self._known
        sock = self._take(host)
        if host in self._ready:
            self._ready.move_to_end(host)
        return sock, host

    def close(self) -> None:
        """Accept no more, and close all connections."""
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        for sock in list(self._silent):
            self._close_silent(sock)
        while self._ready:
            self._take(next(iter(self._ready))).close()
        if self._expiry is not None:
            self._expiry.cancel()

    def _arrived(self, sock: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(sock)
        host, _ = self._silent.pop(sock)
        if self._num_ready >= MAX_READY:
            busiest = max(self._ready, key=lambda h: len(self._ready[h]))
            self._take(busiest).close()
        self._ready.setdefault(host, deque()).append(sock)
        self._num_ready += 1
        self._has_ready.set()

    def _take(self, host: str) -> socket.socket:
        queue = self._ready[host]
        sock = queue.popleft()
        self._num_ready -= 1
        if not queue:
            del self._ready[host]
        return sock

    def _close_silent(self, sock: socket.socket) -> None:
        del self._silent[sock]
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()

    def _expire(self) -> None:
        """Close connections that were silent for too long."""
        self._expiry = None
        before_s = time.monotonic() - self._silent_s
        for sock, (_, since_s) in list(self._silent.items()):
            if since_s > before_s:
                loop = asyncio.get_running_loop()
                self._expiry = loop.call_later(since_s - before_s, self._expire)
                return
            self._close_silent(sock)
