"""A block: the encoded items of some consecutive samples, each with its SHA-256.

A table of lengths and hashes comes first, so one item is read and verified alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

_ENTRY = struct.Struct("<I32s")
MAX_ITEM_BYTES = (1 << 32) - 1

Read = Callable[[int, int], bytes]
"""Returns ``num_bytes`` from ``begin``, or fewer at the end."""


def pack(items: Sequence[bytes]) -> bytes:
    """Return the block of these items."""
    table = [_ENTRY.pack(len(item), hashlib.sha256(item).digest()) for item in items]
    return b"".join([*table, *items])


def read_item(read: Read, count: int, position: int) -> bytes:
    """Return one of ``count`` items; ValueError if the block is damaged."""
    table = read(0, count * _ENTRY.size)
    if len(table) != count * _ENTRY.size:
        raise ValueError("the block is too short")
    entries = list(_ENTRY.iter_unpack(table))
    length, digest = entries[position]
    begin = len(table) + sum(entry[0] for entry in entries[:position])
    item = read(begin, length)
    if len(item) != length or hashlib.sha256(item).digest() != digest:
        raise ValueError("an item has other bytes than its hash says")
    return item


def check(block: bytes, count: int) -> None:
    """Raise ValueError unless this is a block of ``count`` intact items."""

    def read(begin: int, num_bytes: int) -> bytes:
        return block[begin : begin + num_bytes]

    for position in range(count):
        read_item(read, count, position)
    table = block[: count * _ENTRY.size]
    total = len(table) + sum(length for length, _ in _ENTRY.iter_unpack(table))
    if total != len(block):
        raise ValueError("bytes follow the last item")
