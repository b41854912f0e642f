"""Reading of the user's certificates, with errors that name the file and what to do."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from ringleader.errors import ConfigError
from ringleader.identity.certificates import user_context
from ringleader.identity.certificates.cert_binding import key_hash
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.secret_value import Secret
from ringleader.settings.tls_files import TlsFiles

MAX_FILE_BYTES = 1 << 20

_USES = {
    ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth",
    ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth",
}


def load(files: TlsFiles) -> PemCredentials:
    """Read the user's files and check that a connection with them could succeed.

    Raises ConfigError, which names the file that cannot be used.
    """
    certificate, chain = _read_certificates(files.cert)
    key = _read_key(files.key, files.cert, certificate)
    _check_dates(files.cert, certificate)
    _check_names_and_uses(files.cert, certificate)
    _, authority = _read_certificates(files.ca)
    found = PemCredentials(authority, chain, key)
    try:
        user_context.check_self(found)
    except ssl.SSLCertVerificationError as exc:
        text = f"{files.cert}: not accepted by the authorities in {files.ca}"
        raise ConfigError(f"{text} ({exc.verify_message})") from exc
    except ssl.SSLError as exc:
        text = f"{files.cert}: cannot be used for TLS with {files.ca}"
        raise ConfigError(f"{text} ({exc.reason or exc})") from exc
    return found


def load_server(cert: Path, key: Path) -> PemCredentials:
    """Read certificate and key of a server whose clients show none."""
    certificate, chain = _read_certificates(cert)
    found = _read_key(key, cert, certificate)
    _check_dates(cert, certificate)
    made = PemCredentials(b"", chain, found)
    try:
        user_context.http_context(made)
    except ssl.SSLError as exc:
        raise ConfigError(f"{cert}: cannot be used for TLS ({exc.reason})") from exc
    return made


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(f"{path}: cannot be read: {reason}") from exc
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_FILE_BYTES} bytes")
    return data


def _read_certificates(path: Path) -> tuple[x509.Certificate, bytes]:
    """Return the first certificate of a file, and all of them without other text."""
    data = _read(path)
    try:
        found = x509.load_pem_x509_certificates(data)
    except (ValueError, UnsupportedAlgorithm) as exc:
        text = f"{path}: no certificate in PEM (-----BEGIN CERTIFICATE-----) there"
        raise ConfigError(text) from exc
    return found[0], b"".join(each.public_bytes(Encoding.PEM) for each in found)


def _read_key(path: Path, cert: Path, certificate: x509.Certificate) -> Secret[bytes]:
    data = Secret(_read(path))
    try:
        key = load_pem_private_key(data.reveal(), None)
    except TypeError as exc:
        text = f"{path}: the key is encrypted, and nobody is there to type its password"
        raise ConfigError(f"{text}; decrypt it with: openssl pkey -in {path}") from exc
    except (ValueError, UnsupportedAlgorithm) as exc:
        text = f"{path}: no private key in PEM (-----BEGIN PRIVATE KEY-----) there"
        raise ConfigError(text) from exc
    _check_kind(path, key)
    if key_hash(key.public_key()) != key_hash(certificate.public_key()):
        raise ConfigError(f"{path}: not the key of the certificate in {cert}")
    form = PrivateFormat.PKCS8
    return Secret(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _check_kind(path: Path, key: PrivateKeyTypes) -> None:
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        text = f"{path}: gRPC accepts RSA and elliptic curve keys only, as made by"
        raise ConfigError(
            f"{text}: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
        )


def _check_dates(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"the clock of this machine says {now:%Y-%m-%d %H:%M} UTC"
    if now > until:
        raise ConfigError(f"{path}: expired on {until:%Y-%m-%d %H:%M} UTC; {clock}")
    if now < since:
        text = f"{path}: not valid before {since:%Y-%m-%d %H:%M} UTC"
        raise ConfigError(f"{text}; {clock}")


def _check_names_and_uses(path: Path, certificate: x509.Certificate) -> None:
    try:
        extensions = certificate.extensions
    except ValueError as exc:
        raise ConfigError(f"{path}: its extensions are invalid ({exc})") from exc
    if not user_context.names_of(certificate):
        text = f"{path}: names no host; others verify the one they dial"
        how = "subjectAltName=DNS:HOST,IP:ADDRESS"
        raise ConfigError(f"{text}, so make it with {how}")
    try:
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # it may be used for everything
    missing = [name for use, name in _USES.items() if use not in uses]
    if missing:
        text = f"{path}: its extended key usage lacks {' and '.join(missing)}"
        raise ConfigError(f"{text}; every machine both accepts and dials")
