"""Frames of the control stream: notices between ranks, and tagged messages.

Every pair of ranks has one control stream beside its bulk link. A frame is a 48-byte
header and at most ``LIMITS[kind]`` bytes of payload:

Offset  size  field
0       4     magic "RLML"
4       1     version (1)
5       1     kind
6       1     dtype       of a message (names.DTYPES)
7       1     code        BROKEN: which error (names below)
8       4     length      payload bytes that follow
12      4     rank        BROKEN: the cause; WAITING: the rank waited for
16      8     tag         of a message, signed
24      8     message     number of the message at its sender
32      8     count       elements of a message
40      8     zero

BROKEN, WAITING and GOODBYE are notices about the group; docs/data-path.md explains
their use. A message is an OFFER (with its payload if that is small), an ACCEPT from the
receiver once there is a matching recv, and DATA frames, so that no rank has to store
what it did not ask for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from ringleader.errors import ProtocolError
from ringleader.wire import names

MAGIC = b"RLML"
VERSION = 1
FRAME = struct.Struct("<4sBBBBIIqQQ8x")
FRAME_BYTES = FRAME.size
EAGER_BYTES = 32 << 10
"""Payload up to this size is sent with the offer. A larger limit would let a peer fill
memory with unrequested data; a smaller one would cost a round trip too often."""
DATA_BYTES = 1 << 20
"""Payload of one DATA frame: large enough to be cheap, small enough that a notice never
waits long behind it."""
TEXT_BYTES = 2048


class Kind(IntEnum):
    """The meaning of a frame."""

    BROKEN = 1
    WAITING = 2
    GOODBYE = 3
    OFFER = 4
    ACCEPT = 5
    DATA = 6


LIMITS = {
    Kind.BROKEN: TEXT_BYTES,
    Kind.WAITING: 64,
    Kind.GOODBYE: 0,
    Kind.OFFER: EAGER_BYTES,
    Kind.ACCEPT: 0,
    Kind.DATA: DATA_BYTES,
}

ERROR_NAMES = (
    "PeerLost",
    "DeadlineExceeded",
    "CallMismatch",
    "ProtocolError",
    "GroupAborted",
    "InternalError",
)
"""Errors a BROKEN notice can carry, by code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The header of one frame."""

    kind: Kind
    length: int = 0
    dtype: str = "none"
    code: int = 0
    rank: int = 0
    tag: int = 0
    message: int = 0
    count: int = 0


def encode(frame: Frame) -> bytes:
    """Encode ``frame`` in 48 bytes."""
    return FRAME.pack(
        MAGIC,
        VERSION,
        frame.kind,
        names.DTYPES.index(frame.dtype),
        frame.code,
        frame.length,
        frame.rank,
        frame.tag,
        frame.message,
        frame.count,
    )


def decode(data: bytes | bytearray | memoryview, peer: int) -> Frame:
    """Decode a frame; raise ProtocolError if it is invalid or its payload too long."""
    if len(data) != FRAME_BYTES:
        raise ProtocolError(
            peer, f"control: {len(data)} bytes instead of {FRAME_BYTES}"
        )
    magic, version, kind, dtype, code, length, rank, tag, message, count = FRAME.unpack(
        data
    )
    if magic != MAGIC or version != VERSION:
        raise ProtocolError(peer, f"control: magic {magic!r} version {version}")
    if kind not in Kind.__members__.values():
        raise ProtocolError(peer, f"control: kind {kind} is unknown")
    if length > LIMITS[Kind(kind)]:
        limit = LIMITS[Kind(kind)]
        raise ProtocolError(peer, f"control: {length} bytes of payload, limit {limit}")
    if dtype >= len(names.DTYPES) or any(data[40:48]):
        raise ProtocolError(peer, "control: unknown dtype or reserved bytes not zero")
    if kind == Kind.BROKEN and code >= len(ERROR_NAMES):
        raise ProtocolError(peer, f"control: error code {code} is unknown")
    return Frame(
        kind=Kind(kind),
        length=length,
        dtype=names.DTYPES[dtype],
        code=code,
        rank=rank,
        tag=tag,
        message=message,
        count=count,
    )
