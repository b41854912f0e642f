"""TLS 1.3 contexts of links: both sides show certificates, sessions never resume."""

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
from ringleader.identity.record_cipher import can_seal
from ringleader.identity.secret_value import Secret
from ringleader.wire.sealed_record import ALPN, SEALED_ALPN


def offered() -> list[str]:
    """Return the protocols that this process offers, the best first."""
    return [SEALED_ALPN, ALPN] if can_seal() else [ALPN]


def server_context(
    verifier: CertificateVerifier, leaf: LeafCertificate, sni_verifier: SniVerifier
) -> ssl.SSLContext:
    """Return the context for accepting. Strangers get alert 112, not a certificate."""

    def check_name(
        _tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> int | None:
        return (
            None
            if sni_verifier.admits(name)
            else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        )

    context = _context(ssl.PROTOCOL_TLS_SERVER, verifier, leaf)
    context.num_tickets = 0  # no resumption, so that every link runs every check
    context.sni_callback = check_name
    return context


def client_context(
    verifier: CertificateVerifier, leaf: LeafCertificate
) -> ssl.SSLContext:
    """Return the context for dialing."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, verifier, leaf)


def check_alpn(
    tls: ssl.SSLObject | ssl.SSLSocket, peer: int | str = "the peer"
) -> None:
    """Raise ProtocolError if no common protocol was negotiated.

    Python does not fail the handshake in that case.
    """
    spoken = tls.selected_alpn_protocol()
    if spoken not in (ALPN, SEALED_ALPN):
        text = f"speaks {spoken or 'no protocol we know'}, and we speak {ALPN}"
        raise ProtocolError(peer, f"{text}; another version of Ringleader?")


def _context(
    side: int, verifier: CertificateVerifier, leaf: LeafCertificate
) -> ssl.SSLContext:
    """Return a bare context: the default one uses SSLKEYLOGFILE and system CAs."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # there is no DNS at home; the node id is checked
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=verifier.authority.public_bytes(Encoding.DER))
    _load_leaf(context, leaf)
    context.set_alpn_protocols(offered())
    return context


def _load_leaf(context: ssl.SSLContext, leaf: LeafCertificate) -> None:
    """Load the certificate and its key into the context.

    The ssl module reads keys from files only, so the key passes through one. It is
    encrypted with a password that exists nowhere else, and the directory is private: if
    the process dies in between, nothing readable remains.
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
