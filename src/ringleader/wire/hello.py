"""How a connection opens: one bounded hello, one bounded answer.

Hello, 192 bytes              Answer, 128 bytes
0    8   magic "RINGLDR\\0"     0    8   magic "RINGLDR\\1"
8    2   version (1)           8    2   version (1)
10   1   purpose               10   1   status
11   1   zero                  11   1   zero
12   2   stripe                12   4   rank of the answerer
14   2   number of stripes     16   16  its incarnation
16   8   group                 32   16  its host
24   4   from rank             48   32  its door (Unix socket for this host)
28   4   to rank               80   44  zero
32   4   group size            124  4   CRC-32 of the bytes before
36   4   zero
40   16  namespace
56   16  incarnation
72   16  host
88   100 zero
188  4   CRC-32 of the bytes before

Group is the hash of the view id; incarnation is random per process; host tells ranks
that share memory; namespace is the cluster's tag (zero: none). The CRC catches
strangers that speak something else, not attackers: those are the TLS hook's business.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from ringleader.errors import ProtocolError

VERSION = 1
HELLO_MAGIC = b"RINGLDR\0"
ANSWER_MAGIC = b"RINGLDR\1"
HELLO = struct.Struct("<8sHBxHHQIII4x16s16s16s100xI")
ANSWER = struct.Struct("<8sHBxI16s16s32s44xI")
HELLO_BYTES = HELLO.size
ANSWER_BYTES = ANSWER.size
MAX_SIZE = 1 << 16
"""Ranks in one group. Far above any home, far below what would exhaust us."""
MAX_STRIPES = 64


class Purpose(IntEnum):
    """What the connection is for."""

    CONTROL = 1
    BULK = 2
    SHM = 3


class Status(IntEnum):
    """What the answerer says."""

    OK = 0
    BAD_VERSION = 1
    WRONG_NAMESPACE = 2
    WRONG_RANK = 4
    WRONG_SIZE = 5
    DUPLICATE = 6


EXPLANATION = {
    Status.BAD_VERSION: "it speaks another protocol version; upgrade the older side",
    Status.WRONG_NAMESPACE: "it belongs to another cluster",
    Status.WRONG_RANK: "another rank answers there; is the peer list in the same order "
    "on every machine?",
    Status.WRONG_SIZE: "it counts another number of ranks, or of connections",
    Status.DUPLICATE: "somebody with our rank is already connected; "
    "every process needs a rank of its own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What the connecting side says first."""

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
class Answer:
    """What the accepting side says back."""

    status: Status
    rank: int
    incarnation: bytes
    host: bytes
    door: bytes = b""


def encode_hello(hello: Hello) -> bytes:
    """The 192 bytes of ``hello``."""
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


def encode_answer(answer: Answer) -> bytes:
    """The 128 bytes of ``answer``."""
    body = ANSWER.pack(
        ANSWER_MAGIC,
        VERSION,
        answer.status,
        answer.rank,
        answer.incarnation,
        answer.host,
        answer.door,
        0,
    )
    return _seal(body)


def _seal(body: bytes) -> bytes:
    return body[:-4] + struct.pack("<I", zlib.crc32(body[:-4]))


def speaks_other_version(data: bytes | bytearray) -> bool:
    """Whether ``data`` begins like a hello of a version that is not ours."""
    version = int.from_bytes(data[8:10], "little")
    return len(data) >= 10 and data[:8] == HELLO_MAGIC and version != VERSION


def _open(
    data: bytes, layout: struct.Struct, magic: bytes, peer: int | str
) -> list[object]:
    """Length, magic, version and CRC; then the fields after the version."""
    if len(data) != layout.size:
        raise ProtocolError(peer, f"hello: {len(data)} bytes instead of {layout.size}")
    if data[:8] != magic:
        text = f"hello: it does not speak Ringleader (first bytes {data[:8]!r})"
        raise ProtocolError(peer, text)
    version = int.from_bytes(data[8:10], "little")
    if version != VERSION:
        text = (
            f"hello: protocol version {version}, we speak {VERSION}; upgrade one side"
        )
        raise ProtocolError(peer, text)
    if data != _seal(data):
        raise ProtocolError(peer, "hello: checksum is wrong")
    return list(layout.unpack(data))[2:-1]


def decode_hello(data: bytes, peer: int | str) -> Hello:
    """The hello in ``data``; ProtocolError naming ``peer`` otherwise."""
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
        text = f"hello: ranks {source} -> {to} of {size} make no sense"
        raise ProtocolError(peer, text)
    if not stripe < stripes <= MAX_STRIPES:
        raise ProtocolError(peer, f"hello: stripe {stripe} of {stripes} makes no sense")
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


def decode_answer(data: bytes, peer: int | str) -> Answer:
    """The answer in ``data``; ProtocolError naming ``peer`` otherwise."""
    fields = _open(data, ANSWER, ANSWER_MAGIC, peer)
    status, rank, incarnation, host, door = fields
    assert isinstance(status, int)
    assert isinstance(rank, int)
    assert isinstance(incarnation, bytes)
    assert isinstance(host, bytes)
    assert isinstance(door, bytes)
    if status not in Status.__members__.values():
        raise ProtocolError(peer, f"hello: status {status} is unknown")
    if rank >= MAX_SIZE or not door.isascii() or b"\0" in door.rstrip(b"\0"):
        raise ProtocolError(peer, f"hello: rank {rank}, door {door!r} make no sense")
    answer = Answer(
        status=Status(status),
        rank=rank,
        incarnation=incarnation,
        host=host,
        door=door.rstrip(b"\0"),
    )
    if encode_answer(answer) != data:
        raise ProtocolError(peer, "hello: reserved bytes are not zero")
    return answer
