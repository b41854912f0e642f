"""ServerKey is the key of a parameter server, with the secret of its join link.

Workers know the key by its fingerprint, so the self-signed certificate carries no
information and is made anew at every start. The key is stored in a file, so that join
links survive restarts.
"""

from __future__ import annotations

import hashlib
import secrets
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ringleader.decoding import from_json
from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.checked_struct import (
    verify_checksum,
    with_checksum,
)
from ringleader.identity.storage.private_file import read_private, write_private

FINGERPRINT_BYTES = 16
SECRET_BYTES = 16

FILE = "server.key"
_LIMIT_BYTES = 4096
_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    key: bytes
    secret: bytes
    sha256: str

    def __repr__(self) -> str:
        return "<server key file>"


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The private key of a server and the secret of its join link."""

    key: ec.EllipticCurvePrivateKey
    secret: Secret[bytes]
    """16 bytes: whoever has them may join."""

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint of the key, as join links contain it."""
        return _fingerprint(self.key.public_key())

    def context(self) -> ssl.SSLContext:
        """Return the server's TLS 1.3 context."""
        return self.context_and_certificate()[0]

    def context_and_certificate(self) -> tuple[ssl.SSLContext, bytes]:
        """Return a TLS 1.3 context and its certificate (DER), made for it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        password = Secret(secrets.token_hex(32))
        sealed = self.key.private_bytes(
            Encoding.PEM,
            PrivateFormat.PKCS8,
            BestAvailableEncryption(password.reveal().encode()),
        )
        certificate = _certificate(self.key)
        # The ssl module reads keys from files only; this one is encrypted.
        with tempfile.TemporaryDirectory(prefix="ringleader-") as directory:
            path = Path(directory, "server.pem")
            path.write_bytes(sealed + certificate.public_bytes(Encoding.PEM))
            context.load_cert_chain(path, password=password.reveal)
        return context, certificate.public_bytes(Encoding.DER)


def load_or_make(out: Path) -> ServerKey:
    """Return the key in the directory ``out``; make one if there is none."""
    path = out / FILE
    content = read_private(path, _LIMIT_BYTES)
    if content is None:
        return _make(path)
    try:
        found = from_json(content.reveal(), _File)
        verify_checksum(found)
        key = load_der_private_key(found.key, None)
    except (msgspec.DecodeError, ValueError, UnsupportedAlgorithm) as exc:
        text = f"{path}: damaged ({exc}); put a backup in its place, or delete it"
        raise ConfigError(f"{text} and give workers the new link") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or (
        len(found.secret) != SECRET_BYTES
    ):
        text = f"{path}: not the key of a server"
        raise ConfigError(f"{text}; delete it to make a new one")
    return ServerKey(key, Secret(found.secret))


def fingerprint_of(der: bytes) -> bytes:
    """Return the fingerprint of the key in a certificate; ValueError if it is none."""
    try:
        key = x509.load_der_x509_certificate(der).public_key()
    except (x509.InvalidVersion, UnsupportedAlgorithm) as exc:
        raise ValueError("not a certificate of ours") from exc
    return _fingerprint(key)


def _make(path: Path) -> ServerKey:
    key = ec.generate_private_key(ec.SECP256R1())
    made = ServerKey(key, Secret(secrets.token_bytes(SECRET_BYTES)))
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    content = msgspec.json.encode(with_checksum(_File(der, made.secret.reveal(), "")))
    write_private(path, Secret(content))
    return made


def _fingerprint(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not a key of ours")
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest()[:FINGERPRINT_BYTES]


def _certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ringleader")])
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    names = x509.SubjectAlternativeName([x509.DNSName("ringleader.internal")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(purpose, critical=False)
        .sign(key, SHA256())
    )
