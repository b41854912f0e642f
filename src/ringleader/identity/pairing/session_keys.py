"""SessionKeys are the keys that both sides of a pairing derive from the PIN."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Self, TypeVar

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ringleader.decoding import from_msgpack
from ringleader.identity.node_key import is_weak
from ringleader.identity.pairing.messages import UNDECODABLE
from ringleader.identity.pairing.spake2_exchange import Side
from ringleader.identity.secret_value import Secret

_LABEL = b"ringleader/v1/pair"

_T = TypeVar("_T")


def opening(m1: bytes, m2: bytes, channel: bytes) -> bytes:
    """Return T0, the hash of what both sides sent before the PIN is used."""
    return sha256(_join(_LABEL, m1, m2, channel)).digest()


def _join(*parts: bytes) -> bytes:
    """Concatenate so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Keys that both sides share if they know the same PIN and saw the same
    messages."""

    transcript: bytes
    """T1, the hash of everything sent so far."""
    _mac: dict[Side, Secret[bytes]]
    _seal: dict[Side, ChaCha20Poly1305]

    @classmethod
    def derive(cls, key: Secret[bytes], start: bytes, m3: bytes, m4: bytes) -> Self:
        """Derive the keys from the SPAKE2 result, T0 and the messages of the
        elements."""
        transcript = sha256(_join(start, m3, m4)).digest()
        kdf = HKDF(SHA256(), 4 * 32, transcript, _LABEL + b"/keys")
        wide = Secret(kdf.derive(key.reveal()))
        part = [Secret(wide.reveal()[i : i + 32]) for i in range(0, 128, 32)]
        seal = [ChaCha20Poly1305(each.reveal()) for each in part[2:]]
        return cls(
            transcript, {"J": part[0], "H": part[1]}, {"J": seal[0], "H": seal[1]}
        )

    def proof(self, side: Side) -> bytes:
        """Return the MAC that shows that ``side`` has the keys."""
        message = side.encode() + self.transcript
        return hmac.digest(self._mac[side].reveal(), message, sha256)

    def is_proof(self, side: Side, proof: bytes) -> bool:
        """Return whether ``proof`` is the MAC of ``side``."""
        return hmac.compare_digest(proof, self.proof(side))

    def seal(self, side: Side, number: int, plain: Secret[bytes]) -> bytes:
        """Encrypt the ``number``-th content of a side; a number is used once."""
        nonce = number.to_bytes(12, "big")
        return self._seal[side].encrypt(nonce, plain.reveal(), self.transcript)

    def unseal(self, side: Side, number: int, box: bytes, kind: type[_T]) -> _T | None:
        """Decrypt and decode; None if ``side`` did not encrypt it in this run."""
        nonce = number.to_bytes(12, "big")
        try:
            return from_msgpack(
                self._seal[side].decrypt(nonce, box, self.transcript), kind
            )
        except (InvalidTag, *UNDECODABLE):
            return None

    def statement(self, side: Side) -> bytes:
        """Return what ``side`` signs with its node key: that it took part in this
        run."""
        return _LABEL + b"/id/" + side.encode() + self.transcript

    def has_signed(self, side: Side, public: bytes, signature: bytes) -> bool:
        """Return whether the owner of a node key has signed the statement."""
        if is_weak(public):
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(public)
            key.verify(signature, self.statement(side))
        except (ValueError, InvalidSignature):
            return False
        return True
