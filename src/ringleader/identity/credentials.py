"""Credentials of one process of a node: certificate, TLS key and SNI key.

They do not contain the cluster secret. The agent keeps that to itself and gives its
workers the path of a file with these credentials.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NoReturn, Self, SupportsIndex

import msgspec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from ringleader.decoding import from_msgpack
from ringleader.errors import ConfigError, InternalError, PeerUntrusted
from ringleader.identity.certificates import tls_context
from ringleader.identity.certificates.authority import (
    MEMBER_HOST_NAME,
    Authority,
    LeafCertificate,
)
from ringleader.identity.certificates.cert_binding import CertificateVerifier
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.sni_auth import SniVerifier, new_server_name
from ringleader.identity.cluster_secret import NAMESPACE_BYTES, ClusterSecret
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.checked_struct import (
    verify_checksum,
    with_checksum,
)
from ringleader.identity.storage.private_file import read_private, write_private
from ringleader.ids import NodeId, short

_FILE_LIMIT_BYTES = 8192
_Blob = Annotated[bytes, msgspec.Meta(min_length=1, max_length=4096)]
_Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Namespace = Annotated[
    bytes, msgspec.Meta(min_length=NAMESPACE_BYTES, max_length=NAMESPACE_BYTES)
]


class _File(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    version: Literal[1]
    authority: _Blob
    certificate: _Blob
    key: _Blob
    sni_key: _Key
    namespace: _Namespace
    sha256: str

    def __repr__(self) -> str:
        return "<credentials file>"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Credentials:
    """Credentials of one process. Any thread may use them; there is nothing to
    close."""

    node: NodeId
    namespace: bytes
    """The 16 bytes that identify the cluster in a hello."""
    server: ssl.SSLContext
    """The context for links that we accept."""
    client: ssl.SSLContext
    """The context for links that we dial, with ``server_name()`` as host name."""
    _verifier: CertificateVerifier
    _leaf: LeafCertificate
    _knock_key: Secret[bytes]
    _sni_verifier: SniVerifier

    @classmethod
    def issue(cls, cluster: ClusterSecret, key: NodeKey) -> Self:
        """Return new credentials of a node in a cluster."""
        authority = Authority.of(cluster)
        return cls._assemble(
            authority.verifier,
            authority.issue(key),
            cluster.sni_key(),
            cluster.namespace,
        )

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Return the credentials that another process of this node stored."""
        content = read_private(path, _FILE_LIMIT_BYTES)
        if content is None:
            raise ConfigError(f"{path}: no credentials there; did the agent end?")
        try:
            found = from_msgpack(content.reveal(), _File)
            verify_checksum(found)
            verifier = CertificateVerifier.for_authority(found.authority)
            leaf = LeafCertificate(found.certificate, Secret(found.key))
            sni_key = Secret(found.sni_key)
            return cls._assemble(verifier, leaf, sni_key, found.namespace)
        except (msgspec.DecodeError, ValueError, ssl.SSLError, PeerUntrusted) as exc:
            text = f"{path}: not credentials of a node ({type(exc).__name__})"
            raise ConfigError(text) from None

    @classmethod
    def _assemble(
        cls,
        verifier: CertificateVerifier,
        leaf: LeafCertificate,
        sni_key: Secret[bytes],
        namespace: bytes,
    ) -> Self:
        sni_verifier = SniVerifier(sni_key)
        return cls(
            node=verifier.verify(leaf.certificate),
            namespace=namespace,
            server=tls_context.server_context(verifier, leaf, sni_verifier),
            client=tls_context.client_context(verifier, leaf),
            _verifier=verifier,
            _leaf=leaf,
            _knock_key=sni_key,
            _sni_verifier=sni_verifier,
        )

    def to_file(self, path: Path) -> None:
        """Store them for other processes of this node, readable by this user only."""
        content = _File(
            version=1,
            authority=self._verifier.authority.public_bytes(Encoding.DER),
            certificate=self._leaf.certificate,
            key=self._leaf.key.reveal(),
            sni_key=self._knock_key.reveal(),
            namespace=self.namespace,
            sha256="",
        )
        write_private(path, Secret(msgspec.msgpack.encode(with_checksum(content))))

    def pem(self) -> PemCredentials:
        """Return certificate, key and authority as gRPC takes them."""
        key = load_der_private_key(self._leaf.key.reveal(), None)
        return PemCredentials(
            authority=self._verifier.authority.public_bytes(Encoding.PEM),
            certificate=ssl.DER_cert_to_PEM_cert(self._leaf.certificate).encode(),
            key=Secret(
                key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            ),
            host_name=MEMBER_HOST_NAME,
        )

    def server_name(self, label: str = "", *, host: str = "") -> str:
        """Return the server name (SNI) to dial with, new for every call.

        ``label`` is the one by which the server is announced; empty if it is dialed by
        its address. Members prove who they are, not the ``host`` they are at.
        """
        del host
        return new_server_name(self._knock_key, label)

    def set_labels(self, *labels: str) -> None:
        """Set the labels by which this process is announced; clients may name them."""
        self._sni_verifier.set_labels(*labels)

    def verify(
        self,
        der: bytes | None,
        *,
        expect: NodeId | None = None,
        siblings: bool = False,
        peer: int | str = "the peer",
    ) -> NodeId:
        """Return the node behind a finished handshake; PeerUntrusted says why none.

        Our own node is refused as a clone, unless it is expected or ``siblings``, other
        processes of this node, may connect.
        """
        is_allowed = siblings or expect == self.node
        own = None if is_allowed else self.node
        return self._verifier.verify(der, expect=expect, own=own, peer=peer)

    def announceable(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return ``hosts``: a certificate of the cluster is for every address."""
        return tuple(hosts)

    def check_hosts(
        self, der: bytes | None, hosts: Sequence[str], peer: int | str
    ) -> None:
        """Accept a member at every address: ``verify`` tells who it is."""

    def check_alpn(
        self, sslobj: ssl.SSLObject | ssl.SSLSocket, peer: int | str = "the peer"
    ) -> None:
        """Raise ProtocolError unless the other side speaks our protocol in TLS."""
        tls_context.check_alpn(sslobj, peer)

    def __repr__(self) -> str:
        return f"<credentials of node {short(self.node)}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InternalError("credentials travel by to_file and from_file")
