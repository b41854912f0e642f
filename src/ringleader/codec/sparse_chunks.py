"""sparseloco: the 64 largest of every 4096 values, in 2 bits and a 12-bit index each.

The compressor of SparseLoCo (Sarfi et al. 2025). An encoding has one record of 120
bytes per chunk of 4096 values, 136 times less than float32:

    levels   2 float32   mean magnitude of the smaller and of the larger selected values
    indices  96 bytes    64 indices within the chunk, ascending; two take three bytes
    values   16 bytes    two bits each, the first value lowest: sign, then which level

A shorter last chunk is filled with zeros. Use it with error feedback: what is not
selected must be added to the next values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringleader.codec.codec import Data, Values

CHUNK = 4096
KEPT = 64
"""Values selected from a chunk: 1.6 %."""
_INDEX_BYTES = KEPT * 3 // 2
_RECORD_BYTES = 8 + _INDEX_BYTES + KEPT // 4
_SHIFTS = np.array([0, 2, 4, 6], np.uint8)

_Indices = NDArray[np.int64]


class SparseChunks:
    """Encodes the largest values of each chunk; the others decode to zero."""

    name = "sparseloco"

    def num_bytes(self, count: int) -> int:
        return _RECORD_BYTES * num_chunks(count)

    def encode(
        self, values: Values, data: Data, error_out: Values | None = None
    ) -> None:
        """Select the largest magnitudes; round each to one of two levels."""
        rows = _rows(values)
        magnitudes = np.abs(rows)
        indices = np.argpartition(magnitudes, CHUNK - KEPT, axis=1)[:, CHUNK - KEPT :]
        indices.sort(axis=1)
        kept = np.take_along_axis(rows, indices, axis=1)
        levels, is_large = _levels(np.take_along_axis(magnitudes, indices, axis=1))
        levels[~np.isfinite(rows).all(axis=1)] = np.inf
        records = data.reshape(-1, _RECORD_BYTES)
        records[:, :8] = levels.astype("<f4").view(np.uint8)
        records[:, 8 : 8 + _INDEX_BYTES] = _pack_indices(indices)
        bits = (kept < 0) | (is_large.astype(np.uint8) << 1)
        shifted = bits.reshape(len(rows), KEPT // 4, 4) << _SHIFTS
        records[:, 8 + _INDEX_BYTES :] = np.bitwise_or.reduce(shifted, axis=2)
        if error_out is not None:
            decoded = np.empty(len(values), np.float32)
            self.decode(data, decoded)
            np.subtract(values, decoded, error_out)
            error_out[~np.isfinite(error_out)] = 0

    def decode(self, data: Data, values: Values) -> None:
        """Write the selected values; a chunk that was not finite becomes NaN."""
        records = data.reshape(-1, _RECORD_BYTES)
        levels = np.ascontiguousarray(records[:, :8]).view("<f4").astype(np.float32)
        if not (levels.min(initial=0) >= 0 and (levels[:, 0] <= levels[:, 1]).all()):
            raise ValueError("levels are not two ascending numbers of 0 or more")
        indices = _unpack_indices(records[:, 8 : 8 + _INDEX_BYTES])
        if not (indices[:, 1:] > indices[:, :-1]).all():
            raise ValueError("indices of a chunk do not ascend")
        packed = records[:, 8 + _INDEX_BYTES :]
        bits = (packed[:, :, None] >> _SHIFTS & 3).reshape(len(records), KEPT)
        kept = np.take_along_axis(levels, (bits >> 1).astype(np.int64), axis=1)
        kept *= np.where(bits & 1, np.float32(-1), np.float32(1))
        rows = np.zeros((len(records), CHUNK), np.float32)
        np.put_along_axis(rows, indices, kept, axis=1)
        rows[np.isinf(levels[:, 1])] = np.nan
        values[:] = rows.reshape(-1)[: len(values)]


def num_chunks(count: int) -> int:
    """Return the number of chunks of ``count`` values."""
    return -(-count // CHUNK)


def _rows(values: Values) -> Values:
    """Return a matrix with one chunk per row, the last one filled with zeros."""
    rows = np.zeros((num_chunks(len(values)), CHUNK), np.float32)
    rows.reshape(-1)[: len(values)] = values
    return rows


def _levels(magnitudes: Values) -> tuple[Values, NDArray[np.bool_]]:
    """Return the two levels of each row, and which values belong to the larger one.

    Zeros count for neither: they are no selected values but the filling of a row.
    """
    with np.errstate(invalid="ignore"):
        is_used = magnitudes > 0
        middle = _row_means(magnitudes, is_used)
        is_large = magnitudes > middle[:, None]
        small = _row_means(magnitudes, is_used & ~is_large)
        large = np.maximum(_row_means(magnitudes, is_large), small)
    return np.stack([small, large], axis=1).astype(np.float32), is_large


def _row_means(values: Values, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    total = np.where(mask, values, np.float32(0)).sum(axis=1, dtype=np.float64)
    mean: NDArray[np.float64] = total / np.maximum(mask.sum(axis=1), 1)
    return mean


def _pack_indices(indices: _Indices) -> Data:
    first, second = indices[:, 0::2], indices[:, 1::2]
    pairs = np.stack(
        [first & 255, first >> 8 | (second & 15) << 4, second >> 4], axis=2
    )
    return pairs.astype(np.uint8).reshape(len(indices), _INDEX_BYTES)


def _unpack_indices(data: Data) -> _Indices:
    low, middle, high = np.moveaxis(
        data.astype(np.int64).reshape(len(data), KEPT // 2, 3), 2, 0
    )
    first, second = low | (middle & 15) << 8, middle >> 4 | high << 4
    return np.stack([first, second], axis=2).reshape(len(data), KEPT)
