"""TlsCredentials is the interface that transport needs from a node's credentials."""

from __future__ import annotations

import ssl
from typing import Protocol

from ringleader.ids import NodeId


class TlsCredentials(Protocol):
    """What TLS needs: our certificate, and the verification of the peer's.

    ``ringleader.identity.credentials.Credentials`` implements it.
    """

    @property
    def node(self) -> NodeId:
        """Our own node id."""
        ...

    @property
    def namespace(self) -> bytes:
        """The 16 bytes that identify the cluster in a hello."""
        ...

    @property
    def server(self) -> ssl.SSLContext:
        """The context for links that we accept."""
        ...

    @property
    def client(self) -> ssl.SSLContext:
        """The context for links that we dial, with ``server_name()`` as host name."""
        ...

    def server_name(self, label: str = "") -> str:
        """Return the server name (SNI) to dial with, new for every call."""
        ...

    def verify(
        self,
        der: bytes | None,
        *,
        expect: NodeId | None = None,
        siblings: bool = False,
        peer: int | str = "the peer",
    ) -> NodeId:
        """Return the node that owns a certificate; PeerUntrusted says why there is
        none.

        With ``siblings``, other processes of our own node are accepted.
        """
        ...
