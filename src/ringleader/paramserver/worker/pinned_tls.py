"""TLS contexts that check the server's public key instead of a certificate chain."""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable

from ringleader.identity import server_key

WRONG_KEY = "its key is not the one in the link"
"""Part of the error that a context raises for a key that its check refuses."""


def pinning_context(fingerprint: bytes) -> ssl.SSLContext:
    """Build a context that accepts only the key with this fingerprint."""
    return _context_with_check(lambda found: hmac.compare_digest(found, fingerprint))


def recording_context(into: list[bytes]) -> ssl.SSLContext:
    """Build a context that accepts no key, and appends the fingerprint it saw."""

    def record(found: bytes) -> bool:
        into.append(found)
        return False

    return _context_with_check(record)


def _context_with_check(is_right: Callable[[bytes], bool]) -> ssl.SSLContext:
    """Build a context that calls ``is_right`` with the fingerprint of the key.

    The fingerprint is empty if the key is of another kind than Ringleader's. The check
    is part of the handshake: no byte of a request reaches a server that it refuses.
    """

    def check(der: bytes | None) -> None:
        try:
            found = server_key.fingerprint_of(der or b"")
        except ValueError:
            found = b""
        if not is_right(found):
            raise ssl.SSLCertVerificationError(WRONG_KEY)

    class Socket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self.getpeercert(True))

    class Object(ssl.SSLObject):  # TLS inside a proxy's TLS
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(True))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # must be set before verify_mode
    context.verify_mode = ssl.CERT_NONE  # the check replaces the certificate chain
    context.sslsocket_class, context.sslobject_class = Socket, Object
    return context
