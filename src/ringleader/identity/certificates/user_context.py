"""TLS contexts for the user's own certificates, and the names in them.

Both sides show a certificate, and a client verifies the name that it dialled. Unlike
the cluster's own, these certificates expire, and public tools have made them: OpenSSL's
strict mode would refuse an authority that ``openssl req -x509`` makes.
"""

from __future__ import annotations

import ipaddress
import secrets
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.tls_context import offered
from ringleader.identity.secret_value import Secret


def server_context(pem: PemCredentials) -> ssl.SSLContext:
    """Return the context for accepting; a client must show a certificate."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, pem)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # no resumption, so that every link runs every check
    return context


def client_context(pem: PemCredentials) -> ssl.SSLContext:
    """Return the context for dialing; the server must prove the name we dial."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, pem)


def http_context(pem: PemCredentials) -> ssl.SSLContext:
    """Return the context of a web server, whose clients show no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_chain(context, pem)
    return context


def check_self(pem: PemCredentials) -> None:
    """Connect with ourselves in memory; raises ssl.SSLError as a peer would."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(pem).wrap_bio(to_server, to_client, server_side=True)
    context = client_context(pem)
    context.check_hostname = False
    client = context.wrap_bio(to_client, to_server)
    sides = [client, server]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the host names and addresses that a certificate is for."""
    try:
        kind = x509.SubjectAlternativeName
        found = certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    hosts = found.get_values_for_type(x509.DNSName)
    return (*hosts, *(str(ip) for ip in found.get_values_for_type(x509.IPAddress)))


def covers(names: Iterable[str], host: str) -> bool:
    """Return whether a certificate with these names is for a host name or address."""
    wanted = as_address(host)
    if wanted is not None:
        return any(as_address(name) == wanted for name in names)
    host = host.rstrip(".").lower()
    parent = host.partition(".")[2]
    wild = f"*.{parent}" if "." in parent else host
    return any(name.rstrip(".").lower() in (host, wild) for name in names)


def as_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address without its scope; None if ``host`` is a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _context(side: int, pem: PemCredentials) -> ssl.SSLContext:
    """Return a bare context: the default one uses SSLKEYLOGFILE and system CAs."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=pem.authority.decode())
    _load_chain(context, pem)
    context.set_alpn_protocols(offered())
    return context


def _load_chain(context: ssl.SSLContext, pem: PemCredentials) -> None:
    """Load certificate and key through a file that is encrypted.

    The ssl module reads files only. The user's own may change between the check that
    they fit and this call.
    """
    password = Secret(secrets.token_hex(32))
    key = load_pem_private_key(pem.key.reveal(), None)
    sealed = key.private_bytes(
        Encoding.PEM,
        PrivateFormat.PKCS8,
        BestAvailableEncryption(password.reveal().encode()),
    )
    with tempfile.TemporaryDirectory(prefix="ringleader-") as directory:
        path = Path(directory, "leaf.pem")
        path.write_bytes(sealed + pem.certificate)
        context.load_cert_chain(path, password=password.reveal)
