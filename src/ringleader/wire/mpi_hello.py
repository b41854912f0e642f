"""The hello of a link over MPI: how two ranks agree on the tags of their messages.

A rank sends it to every other rank of the group when it starts to connect, and once
more for every attempt of the other that it learns of. Two ranks are connected when each
has received a hello in which ``seen`` is its own incarnation.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ringleader.errors import ProtocolError

MAGIC = b"RLMPI\x00\x00\x01"
_LAYOUT = struct.Struct("<8sQ16s16sIIII")
HELLO_BYTES = _LAYOUT.size
NOT_SEEN = bytes(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiHello:
    """One attempt of a rank to connect to another."""

    group: int
    """Hash of the view id."""
    incarnation: bytes
    """16 random bytes, new for every attempt."""
    seen: bytes
    """The incarnation of the receiver that this hello answers, or ``NOT_SEEN``."""
    rank: int
    """Rank of the sender in the group."""
    size: int
    control_tag: int
    """Tag of the messages that the sender receives as control stream."""
    bulk_tag: int


def encode(hello: MpiHello) -> bytes:
    """Return the ``HELLO_BYTES`` of a hello."""
    return _LAYOUT.pack(
        MAGIC,
        hello.group,
        hello.incarnation,
        hello.seen,
        hello.rank,
        hello.size,
        hello.control_tag,
        hello.bulk_tag,
    )


def decode(data: bytes, peer: int | str) -> MpiHello:
    """Parse a hello; ProtocolError names ``peer`` if it is invalid."""
    if len(data) != HELLO_BYTES:
        raise ProtocolError(peer, f"hello over MPI of {len(data)} bytes")
    magic, group, incarnation, seen, rank, size, control, bulk = _LAYOUT.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(peer, "hello over MPI of another version of ringleader")
    if not rank < size:
        raise ProtocolError(peer, f"hello over MPI from rank {rank} of {size}")
    return MpiHello(
        group=group,
        incarnation=incarnation,
        seen=seen,
        rank=rank,
        size=size,
        control_tag=control,
        bulk_tag=bulk,
    )
