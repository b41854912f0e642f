"""``ServiceStream``: the conversation of a service with one client, in frames."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from ringleader.errors import PeerLost
from ringleader.ids import NodeId
from ringleader.node.protocol import framing

LOCAL = "a local process"


@dataclass(slots=True, eq=False, weakref_slot=True)
class ServiceStream:
    """Messages in both directions, and who is at the other end.

    Used by both sides of a connection between agents, and by the agent's side of a
    local socket. Neither side waits by itself for a limited time: use
    ``asyncio.timeout``.
    """

    peer: NodeId | None
    """The node at the other end, proven by its certificate; None: a process of this
    user on this machine."""
    name: str
    """What the other end calls itself, for people; printable."""
    subject: str
    """What the client asks the service for; printable, at most 256 characters."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lost: str = ""
    """Why the other end was given up, if it was: what both directions then raise."""

    @property
    def who(self) -> str:
        """The other end, for error messages."""
        return f"{self.name} ({self.peer})" if self.peer else LOCAL

    async def read(self, limit_bytes: int = framing.MAX_BYTES) -> bytes:
        """Return the body of the next message, msgpack or anything else.

        Raises ``PeerLost`` at the end of the stream and ``ProtocolError`` for a body of
        more than ``limit_bytes``, before it is allocated.
        """
        try:
            return await framing.read(self.reader, self.who, limit_bytes)
        except PeerLost as exc:
            if self.lost:
                raise PeerLost(self.who, self.lost) from exc
            raise

    async def send(self, message: object) -> None:
        """Send a message as msgpack, as fast as the other end reads."""
        await self.send_body(framing.encode(message))

    async def send_body(self, body: bytes) -> None:
        """Send a body that is already encoded."""
        try:
            framing.write(self.writer, framing.frame(body))
            await self.writer.drain()
        except OSError as exc:
            raise PeerLost(self.who, self.lost or "closed the connection") from exc

    def close(self) -> None:
        """Close after sending what is buffered, if the other end reads it."""
        with contextlib.suppress(RuntimeError, OSError):  # the loop may be closing
            self.writer.close()

    def abort(self) -> None:
        """Close at once and drop what is buffered."""
        self.writer.transport.abort()

    def give_up(self, why: str) -> None:
        """Close at once: whoever reads or sends gets ``PeerLost`` with this reason."""
        self.lost = why
        self.abort()
