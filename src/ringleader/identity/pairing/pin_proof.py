"""Proof of a server's key by a PIN: SPAKE2 bound to that key, both sides, without I/O.

A worker (J) knows an address and the PIN, a server (H) the PIN and its own key:

    J->H  SPAKE2 element        H->J  SPAKE2 element, sealed content

Both sides hash the fingerprint of the key into the exchange: H that of its own key, J
that of the key which the other end of its TLS connection has proven to hold. So the
content can be opened only if both know the same PIN and nobody sits in between; a
machine in between learns neither the PIN nor the content.

Each run tests one PIN, whatever is sent: the host spends an attempt before it calls
``answer_pin_request``.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ringleader.identity.pairing.spake2_exchange import Spake2Exchange
from ringleader.identity.secret_value import Secret

TAG_BYTES: Final = 16
"""Bytes that sealing adds to a message."""
_LABEL = b"ringleader/v1/vouch/"
_NONCE = bytes(12)
"""Constant, because each key is used once: both sides contribute fresh randomness."""


class PinRequest:
    """The worker's side of one run. ``element`` may be sent repeatedly."""

    def __init__(self, pin: Secret[str], fingerprint: bytes) -> None:
        self.fingerprint = fingerprint
        self._exchange = Spake2Exchange("J", pin, _LABEL + fingerprint)
        self.element = self._exchange.element

    def open(self, element: bytes, sealed: bytes) -> Secret[bytes] | None:
        """Return the content; None for another PIN, another key or garbage. Call it
        once."""
        key = self._exchange.key(element)
        if key is None:
            return None
        try:
            return Secret(_box(key).decrypt(_NONCE, sealed, None))
        except InvalidTag:
            return None


def answer_pin_request(
    pin: Secret[str], fingerprint: bytes, element: bytes, content: Secret[bytes]
) -> tuple[bytes, bytes] | None:
    """Return the host's element and the sealed content; None if theirs is garbage."""
    exchange = Spake2Exchange("H", pin, _LABEL + fingerprint)
    key = exchange.key(element)
    if key is None:
        return None
    return exchange.element, _box(key).encrypt(_NONCE, content.reveal(), None)


def _box(key: Secret[bytes]) -> ChaCha20Poly1305:
    kdf = HKDF(SHA256(), 32, None, _LABEL + b"seal")
    return ChaCha20Poly1305(kdf.derive(key.reveal()))
