"""``PeerConnection``: an authenticated connection between two agents."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from ringleader.errors import PeerError, PeerUnreachable, PeerUntrusted
from ringleader.identity.certificates import tls_errors
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.ids import NodeId
from ringleader.node.protocol.hello import AgentHello, Purpose

HANDSHAKE_S = 5.0
"""For a TLS handshake and both hellos together."""
TLS_SHUTDOWN_S = 1.0

Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class PeerConnection:
    """A connection to a node that is authenticated and has sent its hello."""

    node: NodeId
    hello: AgentHello
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: Address

    @property
    def own_host(self) -> str:
        """The address of this machine at which the connection ends."""
        name = self.writer.get_extra_info("sockname") or ("",)
        return str(name[0]).removeprefix("::ffff:")  # that prefix: see the acceptor

    def close(self) -> None:
        """Close after sending what is buffered, if the peer reads it."""
        with contextlib.suppress(RuntimeError, OSError):  # the loop may be closing
            self.writer.close()

    def abort(self) -> None:
        """Close at once and drop what is buffered."""
        self.writer.transport.abort()


def _accept(_: AgentHello) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class HandshakeContext:
    """Credentials and hello for the handshake, in both directions."""

    credentials: NodeCredentials
    hello: Callable[[str, str], AgentHello]
    """Makes our hello from (purpose, subject)."""
    link_purpose: str = Purpose.CONTROL
    """The purpose of control links: those of agents, or those of a training run."""
    link_subject: str = ""
    refusal: Callable[[AgentHello], str] = _accept
    """Returns why a peer is refused, for example as a member of another run; '': it is
    not."""


def connection_error(who: str, exc: OSError) -> PeerError:
    """Translate a failed connection to ``who`` into one of our errors."""
    if isinstance(exc, ssl.SSLError):
        return tls_errors.explain(who, exc)
    if isinstance(exc, ConnectionResetError):
        # asyncio closes on a wrong server name before the TLS alert is sent.
        text = "closed the connection: it is in another cluster (other secret?)"
        return PeerUntrusted(who, f"{text}, or it is not a ringleader agent")
    return PeerUnreachable(who, f"cannot be reached ({exc.strerror or exc})")
