"""Coming in: everybody proves who they are before a word counts.

A stranger has five seconds for the TLS handshake and its hello together, and
strangers are few: when too many are half-way, the oldest one of the busiest address
goes.
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
from ringleader.node.peering.peer_connection import (
    GOODBYE_S,
    GREETING_S,
    Greeting,
    Guest,
    check_owner,
    prove,
)
from ringleader.node.protocol import framing
from ringleader.node.protocol.framing import Hello

MAX_HALF_OPEN = 64
MAX_PER_ADDRESS = 8


@dataclass(slots=True, eq=False)
class _Stranger:
    address: str
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Door:
    """The listening socket of an agent."""

    greeting: Greeting
    sock: socket.socket
    on_guest: Callable[[Guest], Awaitable[None]]
    num_rejected: int = 0
    _half_open: list[_Stranger] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Held here because asyncio itself does not."""

    async def serve(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(self.sock)
                except OSError:  # no descriptor left, or gone before we came
                    await asyncio.sleep(0.05)
                    continue
                sock.setblocking(False)
                # An IPv4 address looks like that on a socket of both families.
                self._admit(sock, str(address[0]).removeprefix("::ffff:"))
        finally:
            for task in self._tasks:
                task.cancel()

    def _admit(self, sock: socket.socket, address: str) -> None:
        self._make_room(address)
        stranger = _Stranger(address)
        self._half_open.append(stranger)
        stranger.task = asyncio.create_task(self._welcome(sock, stranger))
        self._tasks.add(stranger.task)
        stranger.task.add_done_callback(self._tasks.discard)

    def _make_room(self, address: str) -> None:
        """Drop the oldest stranger of the busiest address while there are too many."""
        counts = Counter(s.address for s in self._half_open)
        crowded = counts[address] >= MAX_PER_ADDRESS
        if not crowded and len(self._half_open) < MAX_HALF_OPEN:
            return
        busiest = address if crowded else counts.most_common(1)[0][0]
        oldest = next(s for s in self._half_open if s.address == busiest)
        self._half_open.remove(oldest)
        if oldest.task is not None:
            oldest.task.cancel()

    async def _welcome(self, sock: socket.socket, stranger: _Stranger) -> None:
        try:
            async with asyncio.timeout(GREETING_S):
                guest = await self._greet(sock, stranger.address)
        except (OSError, PeerError):
            self.num_rejected += 1
            return
        finally:
            if stranger in self._half_open:
                self._half_open.remove(stranger)
        try:
            await self.on_guest(guest)
        except Exception:
            guest.abort()  # it must not wait for us; the trace says whose fault it was
            raise

    async def _greet(self, sock: socket.socket, address: str) -> Guest:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(framing.MAX_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self.greeting.credentials.server,
                ssl_handshake_timeout=GREETING_S,
                ssl_shutdown_timeout=GOODBYE_S,
            )
        except BaseException:
            sock.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            node = prove(self.greeting.credentials, writer, None)
            hello = await self._hear(reader, writer, address, node)
            answer = self.greeting.hello(hello.purpose, hello.subject)
            writer.write(framing.pack(answer))
            await writer.drain()
        except BaseException:
            writer.transport.abort()
            raise
        return Guest(node, hello, reader, writer, (address, hello.port))

    async def _hear(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
        node: NodeId,
    ) -> Hello:
        try:
            hello = await framing.read_hello(reader, address)
            check_owner(hello, node, address)
        except ProtocolError as exc:  # it is a member: it may know why
            ours = self.greeting.hello("", "")
            refusal = msgspec.structs.replace(ours, refusal=exc.text[:256])
            writer.write(framing.pack(refusal))
            await writer.drain()
            raise
        return hello
