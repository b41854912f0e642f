"""Some values of a long vector as bytes: what a sparse exchange sends.

The vector is cut into blocks of 65536 values, so that a place within one is two bytes:

    counts   uint32 per block       how many entries lie in it
    values   float32 per entry      ordered by place
    places   uint16 per entry       ascending within each block

Six bytes per entry, where an index of 32 bits would make it eight. Little-endian. What
arrives is checked before it is used: its length was agreed on before, its counts add up
to it, and places ascend inside the vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringleader.engine.arrays import Array
from ringleader.errors import ProtocolError

BLOCK = 65536
ENTRY_BYTES = 6
COUNT_BYTES = 4

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Entries:
    """Values and where they belong, by ascending place."""

    places: NDArray[np.int64]
    values: Array

    def __len__(self) -> int:
        return len(self.places)


def num_blocks(total: int) -> int:
    """Blocks of a vector of ``total`` values."""
    return -(-total // BLOCK)


def num_bytes(total: int, count: int) -> int:
    """What ``count`` entries of a vector of ``total`` values take."""
    return COUNT_BYTES * num_blocks(total) + ENTRY_BYTES * count


def pack(entries: Entries, total: int, begin: int = 0) -> Bytes:
    """The bytes of ``entries`` of the ``total`` values from ``begin`` on.

    ``begin`` is the first place of a block.
    """
    blocks, count = num_blocks(total), len(entries)
    places = entries.places - begin
    data = np.empty(num_bytes(total, count), np.uint8)
    counts, values, offsets = _fields(data, blocks, count)
    counts[:] = np.bincount(places >> 16, minlength=blocks)
    values[:] = entries.values
    offsets[:] = places & (BLOCK - 1)
    return data


def unpack(
    data: Bytes, total: int, count: int, *, begin: int = 0, peer: int
) -> Entries:
    """The ``count`` entries that ``peer`` packed; ProtocolError if they are not that.

    ``data`` has the length that ``num_bytes`` says.
    """
    blocks = num_blocks(total)
    counts, values, offsets = _fields(data, blocks, count)
    if int(counts.sum(dtype=np.int64)) != count:
        text = f"says it sent {count} entries, but its blocks do not add up to that"
        raise ProtocolError(peer, f"sparse values: {text}")
    places = np.repeat(np.arange(blocks, dtype=np.int64) << 16, counts)
    places += offsets
    if count and (not np.all(places[1:] > places[:-1]) or places[-1] >= total):
        text = f"places do not ascend below {total}"
        raise ProtocolError(peer, f"sparse values: {text}")
    places += begin
    return Entries(places, values)


def _fields(
    data: Bytes, blocks: int, count: int
) -> tuple[NDArray[np.uint32], Array, NDArray[np.uint16]]:
    """(counts, values, places within blocks): views of ``data``."""
    first = COUNT_BYTES * blocks
    second = first + 4 * count
    return (
        data[:first].view("<u4"),
        data[first:second].view("<f4"),
        data[second:].view("<u2"),
    )
