"""A block: the encoded items of some consecutive samples, each with its SHA-256.

A table of places and hashes comes first, so one item is read and verified alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

_ENTRY = struct.Struct("<QQ32s")
"""Where an item begins in the block, its length and its SHA-256."""

Read = Callable[[int, int], bytes]
"""Returns ``num_bytes`` from ``begin``, or fewer at the end."""


def pack(items: Sequence[bytes]) -> bytes:
    """Return the block of these items."""
    table: list[bytes] = []
    begin = len(items) * _ENTRY.size
    for item in items:
        digest = hashlib.sha256(item).digest()
        table.append(_ENTRY.pack(begin, len(item), digest))
        begin += len(item)
    return b"".join([*table, *items])


def read_item(read: Read, position: int) -> bytes:
    """Return the item at a position; ValueError if it is damaged."""
    entry = read(position * _ENTRY.size, _ENTRY.size)
    if len(entry) != _ENTRY.size:
        raise ValueError("the block is too short")
    begin, length, digest = _ENTRY.unpack(entry)
    try:
        item = read(begin, length)
    except OverflowError:  # no file is so long
        item = b""
    if len(item) != length or hashlib.sha256(item).digest() != digest:
        raise ValueError("an item has other bytes than its hash says")
    return item


def check(block: bytes, count: int) -> None:
    """Raise ValueError unless this is a block of ``count`` intact items."""
    end = count * _ENTRY.size
    if len(block) < end:
        raise ValueError("the block is too short")
    for begin, length, digest in _ENTRY.iter_unpack(block[:end]):
        item = block[end : end + length]
        if begin != end or len(item) != length:
            raise ValueError("the items do not follow each other")
        if hashlib.sha256(item).digest() != digest:
            raise ValueError("an item has other bytes than its hash says")
        end += length
    if end != len(block):
        raise ValueError("bytes follow the last item")
