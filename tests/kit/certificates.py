"""A small certificate authority for tests, which also makes what must be refused."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ringleader.identity.certificates.pem import PemCredentials
from ringleader.settings.tls_files import TlsFiles

DAY = timedelta(days=1)
BOTH_USES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class TestCa:
    """An authority with a name; two of one name differ by their keys."""

    __test__ = False

    def __init__(self, name: str = "lab") -> None:
        self._key = new_key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(self._key, DAY, DAY).subject_name(self._name)
        signed = builder.add_extension(basic, critical=True).sign(self._key, SHA256())
        self.pem = signed.public_bytes(Encoding.PEM)

    def issue(
        self,
        key: Key,
        *hosts: str,
        since: timedelta = DAY,
        until: timedelta = DAY,
        uses: Sequence[x509.ObjectIdentifier] = BOTH_USES,
    ) -> bytes:
        """Issue a certificate, valid from ``since`` ago until ``until`` from now."""
        builder = self._builder(key, since, until).subject_name(x509.Name([]))
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(h) for h in hosts])
            builder = builder.add_extension(names, critical=True)
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def files(
        self,
        directory: Path,
        *hosts: str,
        since: timedelta = DAY,
        until: timedelta = DAY,
    ) -> TlsFiles:
        """Write the files of a machine with these names and a new key."""
        key = new_key()
        cert = self.issue(key, *hosts, since=since, until=until)
        return write_files(directory, self.pem, cert, pem_of(key))

    def _builder(
        self, key: Key, since: timedelta, until: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        subject = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
            self._key.public_key()
        )
        return (
            x509.CertificateBuilder()
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - since)
            .not_valid_after(now + until)
            .add_extension(subject, critical=False)  # two authorities of one name
            .add_extension(issuer, critical=False)
        )


def new_key() -> Key:
    """Make a P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def pem_of(key: Key, password: str = "") -> bytes:
    """Return a key as text."""
    seal = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, seal)


def write_files(directory: Path, ca: bytes, cert: bytes, key: bytes) -> TlsFiles:
    """Write the three files of a machine."""
    directory.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(
        directory / "ca.pem", directory / "cert.pem", directory / "key.pem"
    )
    for path, content in ((files.ca, ca), (files.cert, cert), (files.key, key)):
        path.write_bytes(content)
    return files


def client_of(pem: PemCredentials) -> ssl.SSLContext:
    """Return what connects as a member, by HTTP/2 and to any server."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    client.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:  # it takes files only
        certificate, key = Path(folder, "certificate"), Path(folder, "key")
        certificate.write_bytes(pem.certificate)
        key.write_bytes(pem.key.reveal())
        client.load_cert_chain(certificate, key)
    return client


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
