"""The wire format of sparse vectors: selected values of a vector and their indices.

The vector is cut into blocks of 65536 values, so that an index within a block takes two
bytes:

    counts   uint32 per block       entries in the block
    values   float32 per entry      ordered by index
    indices  uint16 per entry       within the block, ascending

An entry takes six bytes; with 32-bit indices it would take eight. Everything is
little-endian. Received data is checked before it is used: both sides know its length
beforehand, the counts must add up to it, and indices must ascend within the vector.
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
class SparseVector:
    """Selected values of a vector, by ascending index."""

    indices: NDArray[np.int64]
    values: Array

    def __len__(self) -> int:
        return len(self.indices)


def num_blocks(total: int) -> int:
    """Return the number of blocks of a vector of ``total`` values."""
    return -(-total // BLOCK)


def num_bytes(total: int, count: int) -> int:
    """Return the packed length of ``count`` entries of a vector of ``total`` values."""
    return COUNT_BYTES * num_blocks(total) + ENTRY_BYTES * count


def pack(entries: SparseVector, total: int, begin: int = 0) -> Bytes:
    """Pack entries that lie within the ``total`` values from index ``begin`` on.

    ``begin`` is the first index of a block.
    """
    blocks, count = num_blocks(total), len(entries)
    indices = entries.indices - begin
    data = np.empty(num_bytes(total, count), np.uint8)
    counts, values, offsets = _fields(data, blocks, count)
    counts[:] = np.bincount(indices >> 16, minlength=blocks)
    values[:] = entries.values
    offsets[:] = indices & (BLOCK - 1)
    return data


def unpack(
    data: Bytes, total: int, count: int, *, begin: int = 0, peer: int
) -> SparseVector:
    """Unpack the ``count`` entries that ``peer`` packed.

    ``data`` must have ``num_bytes(total, count)`` bytes. Raises ProtocolError, naming
    ``peer``, if it is not a valid packing.
    """
    blocks = num_blocks(total)
    counts, values, offsets = _fields(data, blocks, count)
    if int(counts.sum(dtype=np.int64)) != count:
        text = f"announced {count} entries, but its block counts do not add up to that"
        raise ProtocolError(peer, f"sparse vector: {text}")
    indices = np.repeat(np.arange(blocks, dtype=np.int64) << 16, counts)
    indices += offsets
    if count and (not np.all(indices[1:] > indices[:-1]) or indices[-1] >= total):
        text = f"sent indices that do not ascend below {total}"
        raise ProtocolError(peer, f"sparse vector: {text}")
    indices += begin
    return SparseVector(indices, values)


def _fields(
    data: Bytes, blocks: int, count: int
) -> tuple[NDArray[np.uint32], Array, NDArray[np.uint16]]:
    """Return views of ``data``: (counts, values, indices within blocks)."""
    first = COUNT_BYTES * blocks
    second = first + 4 * count
    return (
        data[:first].view("<u4"),
        data[first:second].view("<f4"),
        data[second:].view("<u2"),
    )
