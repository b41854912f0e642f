"""RecordCipher seals the records of one direction of one connection, or opens them.

AES-256-GCM. The sender draws a secret of 32 random bytes and hands it to the receiver
inside TLS. Both derive the keys from it, bound to the node and the side that send:

    HKDF-SHA256(secret, salt = sending node, info = sending side) = key | chain
    HKDF-Expand(chain, "next")                                    = next key | chain

Record number n under a key has the nonce n, 12 bytes, big-endian, and n is never sent.
So no nonce is used twice under a key, and a record that is repeated, left out, moved or
from the other direction does not open. ``docs/wire-format.md`` has the whole protocol.
"""

from __future__ import annotations

import errno
import os
from typing import NoReturn, SupportsIndex

import cryptography
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from ringleader.errors import InternalError
from ringleader.identity.secret_value import Secret
from ringleader.ids import NodeId
from ringleader.wire.sealed_record import SECRET_BYTES, RecordForged

RECORDS_PER_KEY = 1 << 16
"""After that many records both sides go on with the next key, without a message. With
records of 256 KiB that is 2^30 blocks of AES; RFC 8446 (5.5) allows about 2^34."""

_LABEL = b"ringleader/v1/records"
_KEY_BYTES = 32


def can_seal() -> bool:
    """Return whether the installed ``cryptography`` can seal into given memory."""
    return hasattr(AESGCM, "encrypt_into") and hasattr(AESGCM, "decrypt_into")


def frees_gil() -> bool:
    """Return whether other threads run while it seals (measured with 47 to 50)."""
    return int(cryptography.__version__.partition(".")[0]) >= 50


def new_secret() -> Secret[bytes]:
    """Draw the secret of one direction of one connection."""
    return Secret(os.urandom(SECRET_BYTES))


class RecordCipher:
    """The keys of one direction of one connection. Use it from one thread at a time.

    It either seals or opens: two uses of one object would repeat nonces.
    """

    __slots__ = ("_aead", "_chain", "_number", "_process")

    def __init__(
        self, secret: Secret[bytes], *, sender: NodeId, is_dialer: bool
    ) -> None:
        assert len(secret.reveal()) == SECRET_BYTES
        self._process = os.getpid()
        info = _LABEL + (b"/dialer" if is_dialer else b"/listener")
        derivation = HKDF(SHA256(), 2 * _KEY_BYTES, sender.encode(), info)
        self._use(Secret(derivation.derive(secret.reveal())))

    def _use(self, both: Secret[bytes]) -> None:
        """Begin a key, at record number 0."""
        self._aead = AESGCM(both.reveal()[:_KEY_BYTES])
        self._chain = Secret(both.reveal()[_KEY_BYTES:])
        self._number = 0

    def _next(self) -> tuple[AESGCM, bytes]:
        """Return the key of the next record, and the nonce that is its alone.

        Both come from here: a nonce belongs to the key that was in use with it.
        """
        if self._number == RECORDS_PER_KEY:
            following = HKDFExpand(SHA256(), 2 * _KEY_BYTES, _LABEL + b"/next")
            self._use(Secret(following.derive(self._chain.reveal())))
        number = self._number
        self._number += 1
        return self._aead, number.to_bytes(12, "big")

    def seal(self, data: memoryview, header: bytes, into: memoryview) -> None:
        """Write the encrypted ``data`` and its tag; ``into`` is as long as both.

        Raises ConnectionAbortedError in a fork: its parent uses the same nonces.
        """
        if os.getpid() != self._process:
            text = "a fork of the process cannot use its connections"
            raise ConnectionAbortedError(errno.ECONNABORTED, text)
        aead, nonce = self._next()
        aead.encrypt_into(nonce, data, header, into)

    def open(self, record: memoryview, header: bytes, into: memoryview) -> None:
        """Decrypt the next record of the stream; both may begin at the same byte.

        Raises RecordForged; then ``into`` holds nothing of it, and no later record of
        the stream opens.
        """
        aead, nonce = self._next()
        try:
            aead.decrypt_into(nonce, record, header, into)
        except InvalidTag:
            into[:] = bytes(len(into))
            raise RecordForged from None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse copies and pickles: two of them would use the same nonces."""
        raise InternalError("the keys of a connection are neither pickled nor copied")
