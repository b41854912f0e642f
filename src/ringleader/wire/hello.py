"""The hello that opens a connection, and the reply to it. Both have a fixed length.

Hello, 192 bytes              Reply, 128 bytes
0    8   magic "RINGLDR\\0"     0    8   magic "RINGLDR\\1"
8    2   version (1)           8    2   version (1)
10   1   purpose               10   1   status
11   1   zero                  11   1   zero
12   2   stripe                12   4   rank of the replier
14   2   number of stripes     16   16  its incarnation
16   8   group                 32   16  its host
24   4   from rank             48   32  its Unix socket, for ranks of this host
28   4   to rank               80   44  zero
32   4   group size            124  4   CRC-32 of the bytes before
36   4   zero
40   16  namespace
56   16  incarnation
72   16  host
88   100 zero
188  4   CRC-32 of the bytes before

Group is the hash of the view id; incarnation is random per process; host is equal on
ranks that share memory; namespace is the cluster's tag (zero: none). The CRC detects
other protocols, not attackers: TLS keeps those out.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from ringleader.errors import ProtocolError

VERSION = 1
HELLO_MAGIC = b"RINGLDR\0"
REPLY_MAGIC = b"RINGLDR\1"
HELLO = struct.Struct("<8sHBxHHQIII4x16s16s16s100xI")
REPLY = struct.Struct("<8sHBxI16s16s32s44xI")
HELLO_BYTES = HELLO.size
REPLY_BYTES = REPLY.size
MAX_SIZE = 1 << 16
"""Ranks in one group: far more than a home has, far fewer than memory could hold."""
MAX_STRIPES = 64


class Purpose(IntEnum):
    """The purpose of a connection."""

    CONTROL = 1
    BULK = 2
    SHM = 3


class Status(IntEnum):
    """Whether the connection is accepted, or why not."""

    OK = 0
    BAD_VERSION = 1
    WRONG_NAMESPACE = 2
    WRONG_RANK = 4
    WRONG_SIZE = 5
    DUPLICATE = 6
    WRONG_HOST = 7


EXPLANATION = {
    Status.BAD_VERSION: "it speaks another protocol version; upgrade the older side",
    Status.WRONG_NAMESPACE: "it belongs to another cluster",
    Status.WRONG_RANK: "another rank listens there; is the peer list in the same order "
    "on every machine?",
    Status.WRONG_SIZE: "it expects another number of ranks, or of connections per peer",
    Status.DUPLICATE: "a process with the same rank is already connected; "
    "every process needs a rank of its own",
    Status.WRONG_HOST: "the certificate is for another host than this rank's address",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message, sent by the side that connects."""

    purpose: Purpose
    group: int
    from_rank: int
    to_rank: int
    size: int
    incarnation: bytes
    host: bytes
    namespace: bytes = bytes(16)
    stripe: int = 0
    num_stripes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReply:
    """The answer of the side that accepts."""

    status: Status
    rank: int
    incarnation: bytes
    host: bytes
    unix_name: bytes = b""


def encode_hello(hello: Hello) -> bytes:
    """Encode ``hello`` in 192 bytes."""
    body = HELLO.pack(
        HELLO_MAGIC,
        VERSION,
        hello.purpose,
        hello.stripe,
        hello.num_stripes,
        hello.group,
        hello.from_rank,
        hello.to_rank,
        hello.size,
        hello.namespace,
        hello.incarnation,
        hello.host,
        0,
    )
    return _seal(body)


def encode_reply(reply: HelloReply) -> bytes:
    """Encode ``reply`` in 128 bytes."""
    body = REPLY.pack(
        REPLY_MAGIC,
        VERSION,
        reply.status,
        reply.rank,
        reply.incarnation,
        reply.host,
        reply.unix_name,
        0,
    )
    return _seal(body)


def _seal(body: bytes) -> bytes:
    return body[:-4] + struct.pack("<I", zlib.crc32(body[:-4]))


def speaks_other_version(data: bytes | bytearray) -> bool:
    """Whether ``data`` begins like a hello of another protocol version."""
    version = int.from_bytes(data[8:10], "little")
    return len(data) >= 10 and data[:8] == HELLO_MAGIC and version != VERSION


def _open(
    data: bytes, layout: struct.Struct, magic: bytes, peer: int | str
) -> list[object]:
    """Check length, magic, version and CRC; return the fields after the version."""
    if len(data) != layout.size:
        raise ProtocolError(peer, f"hello: {len(data)} bytes instead of {layout.size}")
    if data[:8] != magic:
        text = f"hello: not a Ringleader peer (first bytes {data[:8]!r})"
        raise ProtocolError(peer, text)
    version = int.from_bytes(data[8:10], "little")
    if version != VERSION:
        text = f"hello: protocol version {version}, not {VERSION}; upgrade one side"
        raise ProtocolError(peer, text)
    if data != _seal(data):
        raise ProtocolError(peer, "hello: wrong checksum")
    return list(layout.unpack(data))[2:-1]


def decode_hello(data: bytes, peer: int | str) -> Hello:
    """Decode a hello; raise ProtocolError naming ``peer`` if it is invalid."""
    fields = _open(data, HELLO, HELLO_MAGIC, peer)
    purpose, stripe, stripes, group, source, to, size, namespace, inc, host = fields
    assert isinstance(purpose, int)
    assert isinstance(stripe, int)
    assert isinstance(stripes, int)
    assert isinstance(group, int)
    assert isinstance(source, int)
    assert isinstance(to, int)
    assert isinstance(size, int)
    assert isinstance(namespace, bytes)
    assert isinstance(inc, bytes)
    assert isinstance(host, bytes)
    if purpose not in Purpose.__members__.values():
        raise ProtocolError(peer, f"hello: purpose {purpose} is unknown")
    if not 2 <= size <= MAX_SIZE or source >= size or to >= size or source == to:
        text = f"hello: invalid ranks {source} -> {to} of {size}"
        raise ProtocolError(peer, text)
    if not stripe < stripes <= MAX_STRIPES:
        raise ProtocolError(peer, f"hello: invalid stripe {stripe} of {stripes}")
    hello = Hello(
        purpose=Purpose(purpose),
        group=group,
        from_rank=source,
        to_rank=to,
        size=size,
        incarnation=inc,
        host=host,
        namespace=namespace,
        stripe=stripe,
        num_stripes=stripes,
    )
    if encode_hello(hello) != data:
        raise ProtocolError(peer, "hello: reserved bytes are not zero")
    return hello


def decode_reply(data: bytes, peer: int | str) -> HelloReply:
    """Decode a reply; raise ProtocolError naming ``peer`` if it is invalid."""
    fields = _open(data, REPLY, REPLY_MAGIC, peer)
    status, rank, incarnation, host, name = fields
    assert isinstance(status, int)
    assert isinstance(rank, int)
    assert isinstance(incarnation, bytes)
    assert isinstance(host, bytes)
    assert isinstance(name, bytes)
    if status not in Status.__members__.values():
        raise ProtocolError(peer, f"hello: status {status} is unknown")
    if rank >= MAX_SIZE or not name.isascii() or b"\0" in name.rstrip(b"\0"):
        raise ProtocolError(peer, f"hello: invalid rank {rank} or socket name {name!r}")
    reply = HelloReply(
        status=Status(status),
        rank=rank,
        incarnation=incarnation,
        host=host,
        unix_name=name.rstrip(b"\0"),
    )
    if encode_reply(reply) != data:
        raise ProtocolError(peer, "hello: reserved bytes are not zero")
    return reply
