"""TLS 1.3 as links use it: both sides show certificates, nothing is ever resumed."""

from __future__ import annotations

import secrets
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_der_private_key,
)

from ringleader.errors import ProtocolError
from ringleader.identity.certificates.authority import LeafCertificate
from ringleader.identity.certificates.cert_binding import CertificateVerifier
from ringleader.identity.certificates.sni_auth import SniVerifier
from ringleader.identity.secret_value import Secret

ALPN = "ringleader/1"


def server_context(
    verifier: CertificateVerifier, leaf: LeafCertificate, sni_verifier: SniVerifier
) -> ssl.SSLContext:
    """For the side that accepts. Strangers get alert 112 and no certificate."""

    def judge(_tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        return (
            None
            if sni_verifier.admits(name)
            else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        )

    context = _context(ssl.PROTOCOL_TLS_SERVER, verifier, leaf)
    context.num_tickets = 0  # no resumption: every link runs every check
    context.sni_callback = judge
    return context


def client_context(
    verifier: CertificateVerifier, leaf: LeafCertificate
) -> ssl.SSLContext:
    """For the side that dials."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, verifier, leaf)


def check_alpn(
    tls: ssl.SSLObject | ssl.SSLSocket, peer: int | str = "the peer"
) -> None:
    """Python does not fail a handshake without a common protocol; this does."""
    spoken = tls.selected_alpn_protocol()
    if spoken != ALPN:
        text = f"speaks {spoken or 'no protocol we know'} and we speak {ALPN}"
        raise ProtocolError(peer, f"{text}; another version of Ringleader?")


def _context(
    side: int, verifier: CertificateVerifier, leaf: LeafCertificate
) -> ssl.SSLContext:
    """A bare context: the default one would honour SSLKEYLOGFILE and system CAs."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # homes have no names; the node id is checked
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=verifier.authority.public_bytes(Encoding.DER))
    _load_leaf(context, leaf)
    context.set_alpn_protocols([ALPN])
    return context


def _load_leaf(context: ssl.SSLContext, leaf: LeafCertificate) -> None:
    """The ssl module reads keys from files only, so the key goes through one.

    It is encrypted with a password that exists nowhere else, and the directory is
    private: when the process dies in between, nothing readable stays.
    """
    password = Secret(secrets.token_hex(32))
    key = load_der_private_key(leaf.key.reveal(), None)
    sealed = key.private_bytes(
        Encoding.PEM,
        PrivateFormat.PKCS8,
        BestAvailableEncryption(password.reveal().encode()),
    )
    certificate = x509.load_der_x509_certificate(leaf.certificate)
    with tempfile.TemporaryDirectory(prefix="ringleader-") as directory:
        path = Path(directory, "leaf.pem")
        path.write_bytes(sealed + certificate.public_bytes(Encoding.PEM))
        context.load_cert_chain(path, password=password.reveal)
