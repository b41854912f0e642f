"""Length-prefixed msgpack frames, used between agents and on local agent sockets.

A frame is a length of four bytes (little endian) and a msgpack body. The length is
checked before the body is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ringleader.errors import PeerLost, ProtocolError

if TYPE_CHECKING:  # slow to import, and not needed on local sockets
    from asyncio import StreamReader, StreamWriter

MAX_BYTES = 4 << 20
"""Largest frame accepted from a member: a view with 64 node states fits."""

PREFIX_BYTES = 4

_ENCODER = msgspec.msgpack.Encoder()


def encode(message: object) -> bytes:
    """Return the msgpack body of ``message``."""
    return _ENCODER.encode(message)


def pack(message: object) -> bytes:
    """Encode ``message`` and return it as a frame."""
    return frame(encode(message))


def frame(body: bytes) -> bytes:
    """Return the frame of a body that is already encoded."""
    return len(body).to_bytes(PREFIX_BYTES, "little") + body


async def read(reader: StreamReader, who: str, limit: int = MAX_BYTES) -> bytes:
    """Read one frame from ``who`` and return its body.

    Raises ``PeerLost`` at the end of the stream and ``ProtocolError`` for a frame of
    more than ``limit`` bytes.
    """
    try:
        prefix = await reader.readexactly(PREFIX_BYTES)
        size = int.from_bytes(prefix, "little")
        if size > limit:
            raise ProtocolError(who, f"sent a frame of {size} bytes; limit {limit}")
        return await reader.readexactly(size)
    except (EOFError, OSError) as exc:  # asyncio.IncompleteReadError is an EOFError
        raise PeerLost(who, "closed the connection") from exc


def write(writer: StreamWriter, data: bytes | memoryview) -> None:
    """Buffer frames, or what follows one; raises an ``OSError`` once it is closed.

    asyncio's TLS raises AttributeError instead, if the connection was closed twice.
    """
    if writer.is_closing():
        raise ConnectionResetError("the connection was closed")
    writer.write(data)
