"""UserCredentials: the user's own certificates, in place of those of the cluster.

The certificate's key is the identity of the node, and the authority decides who is a
member. A side that dials verifies the host name or address that it dialled; a side that
accepts verifies that of the rank that the peer says it is (``check_hosts``).

The files are read again when they change. A renewed certificate and other authorities
count from the next handshake on; a new key would be a new node, so it counts from the
next start of the process.
"""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Sequence
from hashlib import sha256
from typing import NoReturn, Self, SupportsIndex

from cryptography import x509

from ringleader.errors import ConfigError, InternalError, PeerUntrusted
from ringleader.identity.certificates import pem_files, tls_context, user_context
from ringleader.identity.certificates.cert_binding import key_hash
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.rotation import RotatingPem
from ringleader.identity.secret_value import Secret
from ringleader.ids import NodeId, short
from ringleader.settings.tls_files import TlsFiles


class UserCredentials:
    """Credentials from the user's files. Any thread may use them; never closed."""

    __slots__ = ("_client", "_lock", "_names", "_pem", "_server", "_source", "node")

    def __init__(self, source: RotatingPem) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._use(source.current())
        self.node = _node_of(self._pem)

    @classmethod
    def load(cls, files: TlsFiles) -> Self:
        """Read the files; ConfigError names the one that cannot be used."""
        node = _node_of(pem_files.load(files))

        def load() -> PemCredentials:
            found = pem_files.load(files)
            if _node_of(found) != node:
                text = f"{files.key}: a new key, and others know this process by the"
                raise ConfigError(f"{text} old one until it is started again")
            return found

        return cls(RotatingPem((files.ca, files.cert, files.key), load))

    @property
    def namespace(self) -> bytes:
        """The 16 bytes that identify the cluster in a hello: its authority's name."""
        return self._derive("namespace")[:16]

    def mdns_key(self) -> Secret[bytes]:
        """Return the key of mDNS records.

        Everybody who knows the authority's name can compute it, so a record is a hint.
        """
        return Secret(self._derive("mdns"))

    def coordinator_key(self) -> Secret[bytes]:
        """Return the key of this cluster's namespace at a coordinator.

        As ``mdns_key``; who may speak to the coordinator, certificates decide.
        """
        return Secret(self._derive("coordinator"))

    @property
    def title(self) -> str:
        """The name of the authority, for people."""
        return self._authority_name().rfc4514_string()

    @property
    def server(self) -> ssl.SSLContext:
        """The context for links that we accept."""
        return self._current()[0]

    @property
    def client(self) -> ssl.SSLContext:
        """The context for links that we dial, with ``server_name(host=...)``."""
        return self._current()[1]

    def pem(self) -> PemCredentials:
        """Return certificate, key and authorities as gRPC takes them."""
        self._current()
        return self._pem

    def server_name(self, label: str = "", *, host: str = "") -> str:
        """Return the name that the server at ``host`` must prove.

        On this machine that is its own name: nobody certifies 127.0.0.1.
        """
        del label
        return self._name_to_prove(host)

    def set_labels(self, *labels: str) -> None:
        """Do nothing: names of servers are verified, not labels."""

    def announceable(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return those of our ``hosts`` that our certificate is for.

        Raises ConfigError if there are none: no peer would accept us.
        """
        found = tuple(h for h in hosts if self._covers(self._names, h))
        if not found:
            text = f"others reach this machine at {' or '.join(hosts)}, and its "
            text += f"certificate is for {_listed(self._names)}"
            how = "make one with these in subjectAltName, or set RINGLEADER_ADDRESS"
            raise ConfigError(f"{text}; {how} to a name in it")
        return found

    def verify(
        self,
        der: bytes | None,
        *,
        expect: NodeId | None = None,
        siblings: bool = False,
        peer: int | str = "the peer",
    ) -> NodeId:
        """Return the node behind a finished handshake, which verified its chain.

        Raises PeerUntrusted if it is not ``expect``, or is this machine itself without
        ``siblings``.
        """
        node = NodeId(_base32(key_hash(_parse(der, peer).public_key())))
        if expect is not None and node != expect:
            text = f"unexpected certificate: that of {short(node)} instead of"
            raise PeerUntrusted(peer, f"{text} {short(expect)}")
        if node == self.node and not siblings and expect is None:
            text = "it has the certificate of this machine; each needs its own key"
            raise PeerUntrusted(peer, text)
        return node

    def check_hosts(
        self, der: bytes | None, hosts: Sequence[str], peer: int | str
    ) -> None:
        """Raise PeerUntrusted if a client's certificate is for none of its hosts."""
        names = user_context.names_of(_parse(der, peer))
        if not any(self._covers(names, host) for host in hosts):
            text = f"its certificate is for {_listed(names)}, and not for"
            raise PeerUntrusted(peer, f"{text} {' or '.join(hosts)}")

    def check_alpn(
        self, sslobj: ssl.SSLObject | ssl.SSLSocket, peer: int | str = "the peer"
    ) -> None:
        """Raise ProtocolError unless the other side speaks our protocol in TLS."""
        tls_context.check_alpn(sslobj, peer)

    def _current(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        found = self._source.current()
        with self._lock:
            if found is not self._pem:
                self._use(found)
            return self._server, self._client

    def _use(self, pem: PemCredentials) -> None:
        self._server = user_context.server_context(pem)
        self._client = user_context.client_context(pem)
        leaf = x509.load_pem_x509_certificate(pem.certificate)
        self._names = user_context.names_of(leaf)
        self._pem = pem

    def _covers(self, names: Sequence[str], host: str) -> bool:
        return user_context.covers(names, self._name_to_prove(host))

    def _name_to_prove(self, host: str) -> str:
        address = user_context.as_address(host)
        is_here = address.is_loopback if address else host in ("", "localhost")
        return self._names[0] if is_here else host.partition("%")[0]

    def _authority_name(self) -> x509.Name:
        return x509.load_pem_x509_certificate(self._pem.authority).subject

    def _derive(self, purpose: str) -> bytes:
        label = f"ringleader/v1/user-ca/{purpose}\0".encode()
        return sha256(label + self._authority_name().public_bytes()).digest()

    def __repr__(self) -> str:
        return f"<credentials of the user's certificate for {_listed(self._names)}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InternalError("credentials travel as the paths of their files")


def _node_of(pem: PemCredentials) -> NodeId:
    leaf = x509.load_pem_x509_certificate(pem.certificate)
    return NodeId(_base32(key_hash(leaf.public_key())))


def _parse(der: bytes | None, peer: int | str) -> x509.Certificate:
    if not der:
        raise PeerUntrusted(peer, "showed no certificate")
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError as exc:
        raise PeerUntrusted(peer, "its certificate cannot be read") from exc


def _base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "no host"
