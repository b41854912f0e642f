"""The other end of a connection between agents: proven, and introduced."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from ringleader.errors import PeerError, PeerUnreachable, PeerUntrusted, ProtocolError
from ringleader.identity.certificates import tls_errors
from ringleader.identity.credentials import Credentials
from ringleader.ids import NodeId
from ringleader.node.protocol.framing import Hello

GREETING_S = 5.0
"""For a TLS handshake and both hellos together."""
GOODBYE_S = 1.0

Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class Guest:
    """A connection to a node that has proven its identity and said hello."""

    node: NodeId
    hello: Hello
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: Address

    def close(self) -> None:
        """Hang up, politely if the other side reads, at once if it does not."""
        with contextlib.suppress(RuntimeError, OSError):  # the loop may be closing
            self.writer.close()

    def abort(self) -> None:
        """Hang up without another word."""
        self.writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Greeting:
    """What both directions need to introduce us."""

    credentials: Credentials
    hello: Callable[[str, str], Hello]
    """(purpose, subject) -> our hello."""


def check_owner(hello: Hello, node: NodeId, address: str) -> None:
    if hello.node != node:
        raise ProtocolError(address, "says it is another node than it proved to be")


def prove(
    credentials: Credentials, writer: asyncio.StreamWriter, expect: NodeId | None
) -> NodeId:
    """The node at the other end of a finished handshake; PeerUntrusted if none."""
    tls = writer.get_extra_info("ssl_object")
    credentials.check_alpn(tls)
    # Our own node is let in: what speaks with our key is told by its incarnation.
    return credentials.verify(tls.getpeercert(True), expect=expect, siblings=True)


def explain(who: str, exc: OSError) -> PeerError:
    """A failed connection in our words."""
    if isinstance(exc, ssl.SSLError):
        return tls_errors.explain(who, exc)
    if isinstance(exc, ConnectionResetError):
        # asyncio hangs up on a wrong knock before the alert has left.
        text = "hung up on us: it is in another cluster (other secret?)"
        return PeerUntrusted(who, f"{text}, or it is no agent")
    return PeerUnreachable(who, f"cannot be reached ({exc.strerror or exc})")
