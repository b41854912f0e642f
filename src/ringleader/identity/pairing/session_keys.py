"""The frames of pairing, and the keys that both sides derive from a PIN.

``pairing`` tells what each frame is for. All of them are strict: exact types, exact
lengths, nothing left over.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Literal, Self, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ringleader.errors import ProtocolError
from ringleader.identity.cluster_secret import MAX_ADMINS, MAX_NAME_BYTES, ROOT_BYTES
from ringleader.identity.node_key import PUBLIC_BYTES, is_weak
from ringleader.identity.pairing.spake2_exchange import ELEMENT_BYTES, Side
from ringleader.identity.secret_value import Secret

MAX_FRAME_BYTES = 512
"""The longest frame has about 400; a stranger cannot make us keep more than this."""
NONCE_BYTES = 16
_LABEL = b"ringleader/v1/pair"
_GARBAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _exactly(length: int) -> msgspec.Meta:
    return msgspec.Meta(min_length=length, max_length=length)


_Public = Annotated[bytes, _exactly(PUBLIC_BYTES)]
_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES)]
_Signature = Annotated[bytes, _exactly(64)]
_Box = Annotated[bytes, msgspec.Meta(min_length=16, max_length=MAX_FRAME_BYTES)]


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An array with exactly these fields."""


class Hello(_Frame):
    """M1 and M2."""

    version: Literal[1]
    nonce: Annotated[bytes, _exactly(NONCE_BYTES)]
    public: _Public


class Element(_Frame):
    """M3 and M4."""

    element: Annotated[bytes, _exactly(ELEMENT_BYTES)]


class Sealed(_Frame):
    """M5 and M6."""

    proof: Annotated[bytes, _exactly(32)]
    box: _Box


class Thanks(_Frame):
    """M7."""

    box: _Box


class Introduction(_Frame):
    """What is sealed in M5."""

    name: _Name
    signature: _Signature


class Handover(_Frame):
    """What is sealed in M6."""

    cluster: _Name
    epoch: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]
    root: Annotated[bytes, _exactly(ROOT_BYTES)]
    admins: Annotated[list[_Public], msgspec.Meta(max_length=MAX_ADMINS)]
    name: _Name
    signature: _Signature

    def __repr__(self) -> str:
        return "<handover>"


_T = TypeVar("_T")


def decode(frame: bytes, kind: type[_T], peer: str) -> _T:
    """The fields of a frame; ProtocolError for everything that is not exactly it."""
    try:
        return msgspec.msgpack.decode(frame, type=kind)
    except _GARBAGE as exc:
        raise ProtocolError(peer, f"does not pair as we do ({exc})") from exc


def opening(m1: bytes, m2: bytes, channel: bytes) -> bytes:
    """T0: what both sides said before the PIN came into play."""
    return sha256(_join(_LABEL, m1, m2, channel)).digest()


def _join(*parts: bytes) -> bytes:
    """Concatenate so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """What two sides have in common if they know the same PIN and heard the same."""

    transcript: bytes
    """T1."""
    _mac: dict[Side, Secret[bytes]]
    _seal: dict[Side, ChaCha20Poly1305]

    @classmethod
    def derive(cls, key: Secret[bytes], start: bytes, m3: bytes, m4: bytes) -> Self:
        """From the result of SPAKE2, T0 and the frames of the elements."""
        transcript = sha256(_join(start, m3, m4)).digest()
        kdf = HKDF(SHA256(), 4 * 32, transcript, _LABEL + b"/keys")
        wide = Secret(kdf.derive(key.reveal()))
        part = [Secret(wide.reveal()[i : i + 32]) for i in range(0, 128, 32)]
        seal = [ChaCha20Poly1305(each.reveal()) for each in part[2:]]
        return cls(
            transcript, {"J": part[0], "H": part[1]}, {"J": seal[0], "H": seal[1]}
        )

    def proof(self, side: Side) -> bytes:
        """What shows that ``side`` has the keys."""
        message = side.encode() + self.transcript
        return hmac.digest(self._mac[side].reveal(), message, sha256)

    def is_proof(self, side: Side, proof: bytes) -> bool:
        """Whether ``side`` has shown it."""
        return hmac.compare_digest(proof, self.proof(side))

    def close(self, side: Side, number: int, plain: Secret[bytes]) -> bytes:
        """Seal the ``number``-th content of a side; a number is used once."""
        nonce = number.to_bytes(12, "big")
        return self._seal[side].encrypt(nonce, plain.reveal(), self.transcript)

    def open(self, side: Side, number: int, box: bytes, kind: type[_T]) -> _T | None:
        """What was sealed; None if it was not sealed by ``side`` in this run."""
        nonce = number.to_bytes(12, "big")
        try:
            return msgspec.msgpack.decode(
                self._seal[side].decrypt(nonce, box, self.transcript), type=kind
            )
        except (InvalidTag, *_GARBAGE):
            return None

    def statement(self, side: Side) -> bytes:
        """What ``side`` signs with its node key: that it took part in this very run."""
        return _LABEL + b"/id/" + side.encode() + self.transcript

    def has_signed(self, side: Side, public: bytes, signature: bytes) -> bool:
        """Whether the owner of a node key has signed."""
        if is_weak(public):
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(public)
            key.verify(signature, self.statement(side))
        except (ValueError, InvalidSignature):
            return False
        return True
