"""Messages of the pairing protocol, as strict msgpack arrays.

``protocol`` explains what each one is for. Types and lengths are exact, and nothing may
follow.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from ringleader.decoding import from_msgpack
from ringleader.errors import ProtocolError
from ringleader.identity.cluster_secret import MAX_ADMINS, MAX_NAME_BYTES, ROOT_BYTES
from ringleader.identity.node_key import PUBLIC_BYTES
from ringleader.identity.pairing.spake2_exchange import ELEMENT_BYTES

MAX_FRAME_BYTES = 512
"""The longest message has about 400; this bounds what a stranger makes us store."""
NONCE_BYTES = 16
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _exactly(length: int) -> msgspec.Meta:
    return msgspec.Meta(min_length=length, max_length=length)


_Public = Annotated[bytes, _exactly(PUBLIC_BYTES)]
_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES)]
_Signature = Annotated[bytes, _exactly(64)]
_Box = Annotated[bytes, msgspec.Meta(min_length=16, max_length=MAX_FRAME_BYTES)]


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Base of all messages: an array with exactly these fields."""


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
    """The encrypted content of M5."""

    name: _Name
    signature: _Signature


class Handover(_Frame):
    """The encrypted content of M6."""

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
    """Decode a message; ProtocolError if it is not exactly of this kind."""
    try:
        return from_msgpack(frame, kind)
    except UNDECODABLE as exc:
        raise ProtocolError(peer, f"sent an invalid pairing message ({exc})") from exc
