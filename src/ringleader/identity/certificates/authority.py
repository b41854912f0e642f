"""Authority issues the certificates of a cluster's nodes.

It is derived from the cluster secret and is the same on every member, to the last byte.
Nothing expires: certificates are valid from 1970 to 9999, so that a wrong clock never
breaks a link. To lock a node out, replace the cluster secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn, Self, SupportsIndex

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ringleader.errors import InternalError
from ringleader.identity.certificates.cert_binding import (
    EXTENSION,
    CertificateVerifier,
    bind,
    key_hash,
)
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.ids import NodeId

_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ringleader")])
_SERIAL = 1
_SIGNS = {"key_cert_sign", "crl_sign"}
_SPEAKS = {"digital_signature"}
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


MEMBER_HOST_NAME = "member.ringleader.internal"
"""In the certificate of every node: gRPC verifies a host name, and only this one is
known before the peer has answered."""


def certificate_host_name(node: NodeId) -> str:
    """Return the host name in a node's certificate, for TLS stacks that require one."""
    return f"{node}.node.internal"


@dataclass(frozen=True, slots=True)
class LeafCertificate:
    """The certificate of one process, and its TLS key."""

    certificate: bytes
    key: Secret[bytes]
    """PKCS #8, DER."""


class Authority:
    """Issues certificates. Holding one is equivalent to knowing the cluster secret."""

    __slots__ = ("_key", "certificate", "verifier")

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: bytes) -> None:
        self._key = key
        self.certificate = certificate
        """DER; byte for byte the same on every member."""
        self.verifier = CertificateVerifier.for_authority(certificate)

    @classmethod
    def of(cls, cluster: ClusterSecret) -> Self:
        """Return the authority of a cluster."""
        key = ec.derive_private_key(cluster.authority_scalar(), ec.SECP256R1())
        certificate = (
            _blank(key.public_key(), key.public_key())
            .subject_name(_NAME)
            .serial_number(_SERIAL)
            .add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(_usage(_SIGNS), critical=True)
            .sign(key, SHA256(), ecdsa_deterministic=True)
        )
        return cls(key, certificate.public_bytes(Encoding.DER))

    def issue(self, node: NodeKey) -> LeafCertificate:
        """Issue a certificate, with a new TLS key, for one process of a node."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key()
        bound = bind(node, self.verifier.authority_hash, key_hash(public))
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        own_name = certificate_host_name(node.node_id)
        names = [x509.DNSName(name) for name in (own_name, MEMBER_HOST_NAME)]
        certificate = (
            _blank(public, self._key.public_key())
            .subject_name(x509.Name([]))
            .serial_number(x509.random_serial_number())
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(_usage(_SPEAKS), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.UnrecognizedExtension(EXTENSION, bound), critical=False)
            .sign(self._key, SHA256())
        )
        secret = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return LeafCertificate(certificate.public_bytes(Encoding.DER), Secret(secret))

    def verify(
        self,
        der: bytes | None,
        expect: NodeId | None = None,
        own: NodeId | None = None,
    ) -> NodeId:
        """Return the node that owns a certificate; PeerUntrusted says why there is
        none."""
        return self.verifier.verify(der, expect=expect, own=own)

    def __repr__(self) -> str:
        return "<authority>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InternalError("an authority is neither pickled nor copied")


def _blank(
    subject: ec.EllipticCurvePublicKey, issuer: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """Return a builder with what both kinds of certificates have in common.

    Strict verifiers require both key identifiers.
    """
    from_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer)
    return (
        x509.CertificateBuilder()
        .issuer_name(_NAME)
        .public_key(subject)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(subject), False)
        .add_extension(from_issuer, critical=False)
    )


def _usage(allowed: set[str]) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in allowed for name in _USAGES})
