"""Finds out by a handshake of our own why a TLS server is not reached.

gRPC says only that the connection broke when a server refuses our certificate.
"""

from __future__ import annotations

import socket
import ssl

from ringleader.errors import PeerUntrusted
from ringleader.identity.certificates import tls_errors, user_context
from ringleader.identity.certificates.pem import PemCredentials

LIMIT_S = 2.0


def speaks_tls(host: str, port: int) -> bool:
    """Return whether a server answers a TLS handshake, whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, and nothing believed
    try:
        with (
            socket.create_connection((host, port), LIMIT_S) as raw,
            context.wrap_socket(raw),
        ):
            return True
    except ssl.SSLEOFError:
        return False  # it hung up
    except ssl.SSLError as exc:
        return not tls_errors.is_plain(exc)
    except OSError:
        return False


def why_refused(host: str, port: int, pem: PemCredentials) -> str:
    """Return why one side does not accept the other's certificate; empty: unknown."""
    try:
        context = user_context.client_context(pem)
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, port), LIMIT_S) as raw,
            context.wrap_socket(raw, server_hostname=pem.host_name or host) as tls,
        ):
            return _judgement(tls, pem)
    except ssl.SSLError as exc:
        error = tls_errors.explain(host, exc)
        return error.text if isinstance(error, PeerUntrusted) else ""
    except OSError:
        return ""


def _judgement(tls: ssl.SSLSocket, pem: PemCredentials) -> str:
    """Wait until the server has judged our certificate; return why it refuses it.

    In TLS 1.3 that comes after our handshake. gRPC closes without an alert, so the
    reason is that for which we would refuse the certificate ourselves.
    """
    try:
        if tls.recv(1):
            return ""
    except TimeoutError:
        return ""
    except (ssl.SSLEOFError, ConnectionError):
        pass  # it hung up
    try:
        user_context.check_self(pem)
    except ssl.SSLCertVerificationError as exc:
        return f"does not accept our certificate: {exc.verify_message}"
    except ssl.SSLError:
        pass
    return "does not accept our certificate: it trusts another authority"
