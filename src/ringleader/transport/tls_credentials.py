"""TlsCredentials is the interface that transport needs from a node's credentials."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ringleader.ids import NodeId

if TYPE_CHECKING:
    from ringleader.identity.certificates.pem import PemCredentials


class TlsCredentials(Protocol):
    """What TLS needs: our certificate, and the verification of the peer's.

    ``identity.credentials.Credentials`` implements it for the cluster's certificates,
    ``identity.user_credentials.UserCredentials`` for the user's.
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
        """The context for links that we dial, with ``server_name`` as host name."""
        ...

    def pem(self) -> PemCredentials:
        """Return certificate, key and authority as gRPC takes them."""
        ...

    def server_name(self, label: str = "", *, host: str = "") -> str:
        """Return the server name (SNI) with which to dial ``host``."""
        ...

    def announceable(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the hosts of ours that our certificate is for; ConfigError if none."""
        ...

    def check_hosts(
        self, der: bytes | None, hosts: Sequence[str], peer: int | str
    ) -> None:
        """Raise PeerUntrusted if a certificate is for none of its owner's hosts."""
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
