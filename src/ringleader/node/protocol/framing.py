"""Messages between agents, and between an agent and its own processes.

A frame is a length of four bytes and a msgpack body. The length is checked before the
body is read; the body is decoded into one of a few known types or refused.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from ringleader.errors import PeerLost, ProtocolError
from ringleader.ids import Incarnation, NodeId

MAX_BYTES = 4 << 20
"""The largest frame from a member: a view with 64 seats."""
MAX_HELLO_BYTES = 2048
"""The largest frame from somebody whose hello we have not read."""

PROTOCOL = 1
"""Changes when agents of two versions could not work together."""

PREFIX_BYTES = 4

_PLAIN = r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e]*\Z"
"""What other machines send is shown in terminals: nothing that moves a cursor."""

Text = Annotated[str, msgspec.Meta(max_length=256, pattern=_PLAIN)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first words on a connection between agents, in both directions."""

    protocol: int
    version: Text
    purpose: Text
    """"control", "probe", "store" or "status"."""
    node: Annotated[NodeId, msgspec.Meta(pattern=r"^[a-z2-7]{52}\Z")]
    incarnation: Annotated[Incarnation, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    started_ms: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    name: Text
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    clock_s: Seconds
    """Wall clock, only to tell a user that two clocks differ; never NaN."""
    subject: Text = ""
    """The round whose store is asked for."""
    refusal: Text = ""
    """In an answer: why nothing comes of it."""


HELLO = msgspec.msgpack.Decoder(Hello)
ENCODER = msgspec.msgpack.Encoder()


def pack(message: object) -> bytes:
    """The frame of any message."""
    return frame(ENCODER.encode(message))


def frame(body: bytes) -> bytes:
    """The frame of a body that is encoded already."""
    return len(body).to_bytes(PREFIX_BYTES, "little") + body


async def read(reader: asyncio.StreamReader, who: str, limit: int = MAX_BYTES) -> bytes:
    """The body of the next frame; PeerLost at the end of the stream."""
    try:
        prefix = await reader.readexactly(PREFIX_BYTES)
        size = int.from_bytes(prefix, "little")
        if size > limit:
            raise ProtocolError(who, f"frame of {size} bytes, limit {limit}")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError) as exc:
        raise PeerLost(who, "closed the connection") from exc


async def read_hello(reader: asyncio.StreamReader, who: str) -> Hello:
    """A hello of our protocol; ProtocolError says what is wrong with it."""
    body = await read(reader, who, MAX_HELLO_BYTES)
    try:
        hello = HELLO.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(who, f"hello: {exc}") from exc
    if hello.protocol != PROTOCOL:
        text = (
            f"runs ringleader {hello.version}, which speaks protocol {hello.protocol}; "
            f"we speak {PROTOCOL}: upgrade one of them"
        )
        raise ProtocolError(who, text)
    return hello
