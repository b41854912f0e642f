"""``Acceptor``: accepts connections of other agents and refuses strangers.

A peer has five seconds for the TLS handshake and its hello together. The number of
unfinished handshakes is bounded, from accepting a connection until its socket is
closed or it is authenticated: at the limit, room is made before the next connection is
accepted. A connection that has not sent a byte costs no TLS state and goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from ringleader.errors import ConfigError, PeerError, ProtocolError
from ringleader.identity.user_credentials import UserCredentials
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
from ringleader.node.peering.tls_refusals import AlertSender, note_refusal
from ringleader.node.protocol import framing
from ringleader.node.protocol.agent_port import AGENT_PORT
from ringleader.node.protocol.hello import AgentHello, read_hello
from ringleader.transport.listening_socket import listen

_log = logging.getLogger(__name__)

MAX_HALF_OPEN = 64
"""asyncio allocates 256 KiB per TLS connection, so all of them take 16 MiB."""
MAX_PER_ADDRESS = 8


def listen_for_agents(port: int) -> socket.socket:
    """Listen on ``port``; 0: on ``AGENT_PORT``, or any free port if it is taken."""
    if port:
        return listen("", port)
    try:
        return listen("", AGENT_PORT)
    except ConfigError:  # another agent of this machine has it
        return listen("", 0)


@dataclass(slots=True, eq=False)
class _PendingHandshake:
    sock: socket.socket
    address: str
    is_silent: bool = True
    """True until the peer has sent something; there is no TLS state yet."""
    task: asyncio.Task[PeerConnection | None] = field(init=False)

    def drop(self) -> None:
        """End the handshake; its task is done a few turns of the loop later."""
        if self.is_silent:
            self.task.cancel()
            return
        # Not cancelled: asyncio keeps a TLS transport that is cancelled before its
        # first step open until the handshake times out. It ends at once at this EOF.
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True)
class Acceptor:
    """Serves the listening socket of an agent."""

    handshake: HandshakeContext
    sock: socket.socket
    on_connection: Callable[[PeerConnection], Awaitable[None]]
    num_rejected: int = 0
    refusals: dict[str, str] = field(default_factory=dict)
    """Address -> why its certificate was refused; only with the user's certificates,
    because strangers who do not know a cluster's secret are just counted."""
    _half_open: list[_PendingHandshake] = field(default_factory=list)
    """The oldest first."""
    _handlers: set[asyncio.Task[None]] = field(default_factory=set)
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
                # asyncio does it for sockets that we dial only; without it a message
                # waits up to 40 ms for the acknowledgement of the one before.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A dual-stack socket shows IPv4 addresses with this prefix.
                await self._admit(sock, str(address[0]).removeprefix("::ffff:"))
                # While connections wait in the backlog, sock_accept returns without
                # letting another task run.
                await asyncio.sleep(0)
        finally:
            for task in [*(each.task for each in self._half_open), *self._handlers]:
                task.cancel()

    async def _admit(self, sock: socket.socket, address: str) -> None:
        """Start the handshake with a peer as soon as there is room for it."""
        try:
            while (victim := to_drop(self._half_open, address)) is not None:
                victim.drop()
                await asyncio.wait([victim.task])
        except BaseException:
            sock.close()
            raise
        pending = _PendingHandshake(sock, address)
        pending.task = asyncio.create_task(self._try_handshake(pending))
        self._half_open.append(pending)
        pending.task.add_done_callback(lambda _task: self._finish(pending))

    def _finish(self, pending: _PendingHandshake) -> None:
        """Release a handshake that has ended; hand over the connection it made."""
        self._half_open.remove(pending)
        if pending.is_silent:  # later, the transport owns the socket
            pending.sock.close()
        if pending.task.cancelled():
            return
        connection = pending.task.result()
        if connection is None:
            self.num_rejected += 1
            return
        self.refusals.pop(pending.address, None)
        task = asyncio.create_task(self._handle(connection))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _handle(self, connection: PeerConnection) -> None:
        try:
            await self.on_connection(connection)
        except (OSError, PeerError) as exc:  # it went, or fell silent
            connection.abort()
            _log.info("%s: %s", connection.node, exc)
        except Exception:
            connection.abort()  # the peer must not wait for a handler that failed
            raise

    async def _try_handshake(self, pending: _PendingHandshake) -> PeerConnection | None:
        try:
            return await self._shake_hands(pending)
        except (OSError, PeerError) as exc:
            if isinstance(self.handshake.credentials, UserCredentials):
                note_refusal(self.refusals, pending.address, exc)
            _forget_frames(exc)
            return None

    async def _shake_hands(self, pending: _PendingHandshake) -> PeerConnection:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(framing.MAX_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        async with asyncio.timeout(HANDSHAKE_S):
            await _wait_for_bytes(pending.sock)
            pending.is_silent = False
            transport = await self._start_tls(pending.sock, protocol)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            try:
                node = authenticate(
                    self.handshake.credentials, writer, None, pending.address
                )
                hello = await self._read_hello(reader, writer, pending.address, node)
                reply = self.handshake.hello(hello.purpose, hello.subject)
                framing.write(writer, framing.pack(reply))
                await writer.drain()
            except BaseException:
                writer.transport.abort()
                raise
        address = (pending.address, hello.port)
        return PeerConnection(node, hello, reader, writer, address)

    async def _start_tls(
        self, sock: socket.socket, protocol: asyncio.StreamReaderProtocol
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        context = self.handshake.credentials.server
        sender: AlertSender | None = None
        if isinstance(self.handshake.credentials, UserCredentials):
            sender = AlertSender(context, sock)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=cast("ssl.SSLContext", sender or context),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        finally:
            if sender is not None:
                sender.close()
        return transport

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
            if reason := self.handshake.refusal(hello):
                raise ProtocolError(address, reason)
        except ProtocolError as exc:  # an authenticated member is told the reason
            ours = self.handshake.hello("", "")
            refusal = msgspec.structs.replace(ours, refusal=exc.text[:256])
            framing.write(writer, framing.pack(refusal))
            await writer.drain()
            raise
        return hello


def to_drop(
    half_open: list[_PendingHandshake], address: str
) -> _PendingHandshake | None:
    """Return which handshake must end before one of ``address`` may begin, or None.

    That is the oldest one of the busiest address, a silent one if there is one.
    """
    counts = Counter(each.address for each in half_open)
    if counts[address] >= MAX_PER_ADDRESS:
        candidates = [each for each in half_open if each.address == address]
    elif len(half_open) >= MAX_HALF_OPEN:
        candidates = half_open
    else:
        return None
    silent = [each for each in candidates if each.is_silent] or candidates
    counts = Counter(each.address for each in silent)
    busiest = counts.most_common(1)[0][0]
    return next(each for each in silent if each.address == busiest)


async def _wait_for_bytes(sock: socket.socket) -> None:
    """Wait until the peer has sent something; raise OSError if it hung up instead."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(sock, readable.set)
    except NotImplementedError:  # Windows: TLS waits for the first byte instead
        return
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    if not sock.recv(1, socket.MSG_PEEK):
        raise ConnectionResetError("hung up before the TLS handshake")


def _forget_frames(error: BaseException | None) -> None:
    """Break the cycles through the tracebacks of ``error``.

    They would keep the TLS buffers of a refused stranger, 256 KiB, until the collector
    runs.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
