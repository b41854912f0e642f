"""The 64-byte header that opens every operation on every link: the call it belongs to.

Offset  size  field
0       4     magic "RLOP"
4       1     version (1)
5       1     operation        (names.OPERATIONS)
6       1     reduce op        (names.REDUCE_OPS)
7       1     dtype            (names.DTYPES)
8       8     group            hash of the group's view id
16      8     sequence         number of the operation in its group
24      8     count            elements: of the tensor, or of this pair's part
32      4     root             0xFFFFFFFF: none
36      1     algorithm        (names.ALGORITHMS)
37      1     codec            (names.CODECS)
38      2     arity            of the tree, else 0
40      4     history          CRC-32 over the headers of all earlier operations
44      4     layout           CRC-32 over the parts' lengths where they differ, else 0
48      16    zero

All integers are little-endian. Two ranks in the same operation write the same bytes, so
the check on the hot path is one comparison; a header is decoded only if it differs. The
history reveals earlier calls that differed between ranks which exchanged nothing then.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ringleader.errors import ProtocolError
from ringleader.wire import names

MAGIC = b"RLOP"
VERSION = 1
HEADER = struct.Struct("<4sBBBBQQQIBBHII16x")
HEADER_BYTES = HEADER.size
SEQUENCE_OFFSET = 16
COUNT_OFFSET = 24
HISTORY_OFFSET = 40
NO_ROOT = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The description of one call that its rank sends to its peers."""

    operation: str
    group: int
    sequence: int
    count: int
    dtype: str = "none"
    reduce_op: str = "none"
    root: int | None = None
    algorithm: str = "none"
    codec: str = "none"
    arity: int = 0
    history: int = 0
    layout: int = 0

    def __str__(self) -> str:
        """The call with its arguments, for error messages."""
        details = (
            [f"{self.count} x {self.dtype}"] if self.operation != "barrier" else []
        )
        if self.reduce_op != "none":
            details.append(self.reduce_op)
        if self.root is not None:
            details.append(f"root {self.root}")
        if self.algorithm != "none":
            details.append(self.algorithm)
        if self.codec != "none":
            details.append(f"as {self.codec}")
        if self.layout:
            details.append(f"parts of lengths {self.layout:08x}")
        return f"{self.operation}({', '.join(details)}) #{self.sequence}"


def encode(header: Header) -> bytes:
    """Encode ``header`` in 64 bytes."""
    return HEADER.pack(
        MAGIC,
        VERSION,
        names.OPERATIONS.index(header.operation),
        names.REDUCE_OPS.index(header.reduce_op),
        names.DTYPES.index(header.dtype),
        header.group,
        header.sequence,
        header.count,
        NO_ROOT if header.root is None else header.root,
        names.ALGORITHMS.index(header.algorithm),
        names.CODECS.index(header.codec),
        header.arity,
        header.history,
        header.layout,
    )


def _name(table: tuple[str, ...], code: int, what: str, peer: int | str) -> str:
    if code >= len(table):
        raise ProtocolError(peer, f"operation header: {what} code {code} is unknown")
    return table[code]


def decode(data: bytes | bytearray | memoryview, peer: int | str) -> Header:
    """Decode a header; raise ProtocolError naming ``peer`` if it is invalid."""
    if len(data) != HEADER_BYTES:
        text = f"operation header: {len(data)} bytes instead of {HEADER_BYTES}"
        raise ProtocolError(peer, text)
    magic, version, op, rop, dtype, group, seq, count, root, *rest = HEADER.unpack(data)
    alg, codec, arity, past, layout = rest
    if magic != MAGIC:
        raise ProtocolError(peer, f"operation header: magic {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(peer, f"operation header: version {version}, not {VERSION}")
    if any(data[HEADER_BYTES - 16 :]):
        raise ProtocolError(peer, "operation header: reserved bytes are not zero")
    return Header(
        operation=_name(names.OPERATIONS, op, "operation", peer),
        reduce_op=_name(names.REDUCE_OPS, rop, "reduce op", peer),
        dtype=_name(names.DTYPES, dtype, "dtype", peer),
        group=group,
        sequence=seq,
        count=count,
        root=None if root == NO_ROOT else root,
        algorithm=_name(names.ALGORITHMS, alg, "algorithm", peer),
        codec=_name(names.CODECS, codec, "codec", peer),
        arity=arity,
        history=past,
        layout=layout,
    )
