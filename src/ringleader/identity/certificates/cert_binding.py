"""Binding of a certificate to the node it belongs to, and the check of that binding.

Every member can issue certificates, because every member has the secret. So the chain
proves only that the peer is a member. Which member is told by an extension of 96 bytes:
a node's public key, and its signature over the hashes of the authority's key and of the
TLS key. Nobody can make one for a node whose key they lack, nor move one to another TLS
key or to another cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ringleader.errors import PeerUntrusted
from ringleader.identity.node_key import PUBLIC_BYTES, NodeKey, is_weak, node_id
from ringleader.ids import NodeId, short

EXTENSION = x509.ObjectIdentifier("2.25.244995280022586063836874103038361390218")
"""A random UUID in the arc of object identifiers that needs no registration."""

EXTENSION_BYTES = PUBLIC_BYTES + 64
MAX_CERTIFICATE_BYTES = 4096
"""Ours have about 640; larger ones are not parsed."""

_PURPOSE = b"ringleader/v1/tls-bind\0"


def key_hash(key: PublicKeyTypes) -> bytes:
    """Return SHA-256 of a public key as certificates carry it."""
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256(spki).digest()


def bind(key: NodeKey, authority_hash: bytes, leaf_hash: bytes) -> bytes:
    """Return the extension that ties a TLS key to a node."""
    return key.public + key.sign(_PURPOSE + authority_hash + leaf_hash)


@dataclass(frozen=True, slots=True)
class CertificateVerifier:
    """The public half of a cluster's authority: enough to verify its members."""

    authority: x509.Certificate
    authority_hash: bytes

    @classmethod
    def for_authority(cls, der: bytes) -> Self:
        """Return a verifier for what this authority signed; ValueError if it is
        none."""
        certificate = x509.load_der_x509_certificate(der)
        return cls(certificate, key_hash(certificate.public_key()))

    def verify(
        self,
        der: bytes | None,
        *,
        expect: NodeId | None = None,
        own: NodeId | None = None,
        peer: int | str = "the peer",
    ) -> NodeId:
        """Return the node that owns a certificate; PeerUntrusted says why there is
        none.

        ``expect`` is the only node that may answer, ``own`` the one that must not.
        """
        certificate = self._parse(der, peer)
        node = self._proven(certificate, peer)
        if own is not None and node == own:
            text = f"cloned identity: it has the key of this node, {short(own)}"
            mend = "if a home directory was copied, run 'ringleader leave' and join"
            raise PeerUntrusted(peer, f"{text}; {mend} again on one of the two")
        if expect is not None and node != expect:
            text = f"unexpected node: {short(node)} answers, and not {short(expect)}"
            raise PeerUntrusted(peer, text)
        return node

    def _parse(self, der: bytes | None, peer: int | str) -> x509.Certificate:
        if not der:
            raise PeerUntrusted(peer, "showed no certificate")
        if len(der) > MAX_CERTIFICATE_BYTES:
            raise PeerUntrusted(peer, f"certificate of {len(der)} bytes, too long")
        try:
            certificate = x509.load_der_x509_certificate(der)
            certificate.verify_directly_issued_by(self.authority)
        except Exception as exc:
            # The parser raises errors of many families; here they all mean the same.
            text = "its certificate is not from this cluster (other secret?)"
            raise PeerUntrusted(peer, text) from exc
        return certificate

    def _proven(self, certificate: x509.Certificate, peer: int | str) -> NodeId:
        """Return the node whose key signed this TLS key for this cluster."""
        try:
            found = certificate.extensions.get_extension_for_oid(EXTENSION).value
            leaf_hash = key_hash(certificate.public_key())
        except Exception as exc:
            text = "its certificate does not say which node it is"
            raise PeerUntrusted(peer, text) from exc
        raw = found.value if isinstance(found, x509.UnrecognizedExtension) else b""
        if len(raw) != EXTENSION_BYTES:
            raise PeerUntrusted(
                peer, f"identity of {len(raw)} bytes in its certificate"
            )
        public, signature = raw[:PUBLIC_BYTES], raw[PUBLIC_BYTES:]
        if is_weak(public):
            raise PeerUntrusted(
                peer, "uses a weak node key, for which anybody can sign"
            )
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(
                signature, _PURPOSE + self.authority_hash + leaf_hash
            )
        except (ValueError, InvalidSignature) as exc:
            who = short(node_id(public))
            text = f"claims to be {who}, but the key of {who} did not sign its TLS key"
            raise PeerUntrusted(peer, f"{text} for this cluster") from exc
        return node_id(public)
