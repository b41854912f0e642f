"""``Acceptor``: accepts connections of other agents and refuses strangers.

A peer has five seconds for the TLS handshake and its hello together. The number of
unfinished handshakes is bounded: at the limit, the oldest one of the busiest address
is dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from ringleader.errors import PeerError, ProtocolError
from ringleader.ids import NodeId
from ringleader.node.peering.peer_authentication import (
    authenticate,
    check_hello_owner,
)
from ringleader.node.peering.peer_connection import (
    HANDSHAKE_S,
    TLS_SHUTDOWN_S,
    HandshakeContext,
    PeerConnection,
)
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import AgentHello, read_hello

MAX_HALF_OPEN = 64
MAX_PER_ADDRESS = 8


@dataclass(slots=True, eq=False)
class _PendingHandshake:
    address: str
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Acceptor:
    """Serves the listening socket of an agent."""

    handshake: HandshakeContext
    sock: socket.socket
    on_connection: Callable[[PeerConnection], Awaitable[None]]
    num_rejected: int = 0
    _half_open: list[_PendingHandshake] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """References to running tasks: asyncio itself holds only weak ones."""

    async def serve(self) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(self.sock)
                except OSError:  # no free file descriptor, or the peer is gone already
                    await asyncio.sleep(0.05)
                    continue
                sock.setblocking(False)
                # A dual-stack socket shows IPv4 addresses with this prefix.
                self._start(sock, str(address[0]).removeprefix("::ffff:"))
        finally:
            for task in self._tasks:
                task.cancel()

    def _start(self, sock: socket.socket, address: str) -> None:
        self._make_room(address)
        pending = _PendingHandshake(address)
        self._half_open.append(pending)
        pending.task = asyncio.create_task(self._accept(sock, pending))
        self._tasks.add(pending.task)
        pending.task.add_done_callback(self._tasks.discard)

    def _make_room(self, address: str) -> None:
        """Drop the oldest handshake of the busiest address if there are too many."""
        counts = Counter(s.address for s in self._half_open)
        is_crowded = counts[address] >= MAX_PER_ADDRESS
        if not is_crowded and len(self._half_open) < MAX_HALF_OPEN:
            return
        busiest = address if is_crowded else counts.most_common(1)[0][0]
        oldest = next(s for s in self._half_open if s.address == busiest)
        self._half_open.remove(oldest)
        if oldest.task is not None:
            oldest.task.cancel()

    async def _accept(self, sock: socket.socket, pending: _PendingHandshake) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                connection = await self._shake_hands(sock, pending.address)
        except (OSError, PeerError):
            self.num_rejected += 1
            return
        finally:
            if pending in self._half_open:
                self._half_open.remove(pending)
        try:
            await self.on_connection(connection)
        except Exception:
            connection.abort()  # the peer must not wait for a handler that failed
            raise

    async def _shake_hands(self, sock: socket.socket, address: str) -> PeerConnection:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(framing.MAX_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self.handshake.credentials.server,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        except BaseException:
            sock.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            node = authenticate(self.handshake.credentials, writer, None)
            hello = await self._read_hello(reader, writer, address, node)
            reply = self.handshake.hello(hello.purpose, hello.subject)
            writer.write(framing.pack(reply))
            await writer.drain()
        except BaseException:
            writer.transport.abort()
            raise
        return PeerConnection(node, hello, reader, writer, (address, hello.port))

    async def _read_hello(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
        node: NodeId,
    ) -> AgentHello:
        try:
            hello = await read_hello(reader, address)
            check_hello_owner(hello, node, address)
        except ProtocolError as exc:  # an authenticated member is told the reason
            ours = self.handshake.hello("", "")
            refusal = msgspec.structs.replace(ours, refusal=exc.text[:256])
            writer.write(framing.pack(refusal))
            await writer.drain()
            raise
        return hello
