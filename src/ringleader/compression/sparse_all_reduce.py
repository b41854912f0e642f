"""Sparse all_reduce: the sum of one sparse vector per rank, on every rank.

Every index is added up in rank order, starting from zero, whichever algorithm moves the
entries. All ranks, and all algorithms, therefore produce the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import sparse_format
from ringleader.compression.communicator import Communicator, all_gather_ints
from ringleader.compression.sparse_cost import (
    VALUE_BYTES,
    SparseAlgorithm,
    choose_sparse_algorithm,
    owned_ranges,
)
from ringleader.compression.sparse_format import Bytes, SparseVector
from ringleader.engine.arrays import as_array
from ringleader.errors import ProtocolError

Ranges = list[tuple[int, int]]
"""(begin, end) of the indices that each rank adds up."""

MILLION = 1_000_000
SAMPLED_SHARE = 16
"""One in this many blocks is examined to estimate the overlap of the selections."""


class SparseAllReduce:
    """Adds up sparse vectors, and remembers how much the ranks' selections overlap."""

    def __init__(self) -> None:
        self._overlap: float | None = None

    def run(self, mine: SparseVector, out: Tensor, comm: Communicator) -> None:
        """Write the sum of all ranks' vectors to the flat float32 ``out``."""
        total = len(out)
        ranges = owned_ranges(total, comm.size)
        edges = np.searchsorted(mine.indices, [begin for begin, _ in ranges]).tolist()
        here = np.diff([*edges, len(mine)]).tolist()
        guess = round(MILLION * self._overlap) if self._overlap else 0
        rows = all_gather_ints(comm, [guess, *here])
        _check(rows, ranges)
        overlap = rows[0][0] / MILLION or None  # rank 0's, so that all choose alike
        counts = [row[1:] for row in rows]
        most = max(map(sum, counts))
        algorithm, _ = choose_sparse_algorithm(
            total, most, comm.size, overlap=overlap, is_selected=True
        )
        if algorithm is SparseAlgorithm.REDUCE_SCATTER:
            sums = _reduce_scatter(mine, counts, ranges, comm)
            parts, num_distinct = _gather_sums(sums, ranges, comm)
            num_entries = sum(map(sum, counts))
        else:
            parts = _gather(mine, [sum(row) for row in counts], total, comm)
            num_distinct, num_entries = _sample_overlap(parts, total)
        self._overlap = num_distinct / num_entries if num_entries else None
        _add(parts, out)


def _check(rows: list[list[int]], ranges: Ranges) -> None:
    """Raise ProtocolError if a rank announced more entries than there are indices."""
    for peer, (guess, *counts) in enumerate(rows):
        fits = all(0 <= n <= b - a for n, (a, b) in zip(counts, ranges, strict=True))
        if not fits or not 0 <= guess <= MILLION:
            text = f"announced {counts} entries in the ranges {ranges}"
            raise ProtocolError(peer, f"sparse all_reduce: {text}")


def _gather(
    mine: SparseVector, counts: Sequence[int], total: int, comm: Communicator
) -> list[SparseVector]:
    """Return the entries of every rank."""
    lengths = [sparse_format.num_bytes(total, count) for count in counts]
    received = comm.all_gather_bytes(sparse_format.pack(mine, total), lengths)
    return [
        sparse_format.unpack(data, total, count, peer=peer)
        for peer, (data, count) in enumerate(zip(received, counts, strict=True))
    ]


def _reduce_scatter(
    mine: SparseVector, counts: list[list[int]], ranges: Ranges, comm: Communicator
) -> SparseVector:
    """Send every rank its range of our entries; return the sums of our own range.

    ``counts[rank][i]`` is the number of entries that a rank has in range i.
    """
    rank = comm.rank
    begin, end = ranges[rank]
    edges = np.cumsum([0, *counts[rank]]).tolist()
    sent = [
        sparse_format.pack(_cut(mine, a, b), stop - start, start)
        for a, b, (start, stop) in zip(edges[:-1], edges[1:], ranges, strict=True)
    ]
    here = [row[rank] for row in counts]
    lengths = [sparse_format.num_bytes(end - begin, count) for count in here]
    received = comm.all_to_all_bytes(sent, lengths)
    parts = [
        sparse_format.unpack(data, end - begin, count, begin=begin, peer=peer)
        for peer, (data, count) in enumerate(zip(received, here, strict=True))
    ]
    return _sum(parts, begin, end)


def _cut(entries: SparseVector, a: int, b: int) -> SparseVector:
    return SparseVector(entries.indices[a:b], entries.values[a:b])


def _sum(parts: Sequence[SparseVector], begin: int, end: int) -> SparseVector:
    """Return the sums at every index that any rank selected."""
    values = np.zeros(end - begin, np.float32)
    is_selected = np.zeros(end - begin, np.bool_)
    for part in parts:
        values[part.indices - begin] += part.values
        is_selected[part.indices - begin] = True
    indices = np.flatnonzero(is_selected)
    return SparseVector(indices + begin, values[indices])


def _gather_sums(
    sums: SparseVector, ranges: Ranges, comm: Communicator
) -> tuple[list[SparseVector], int]:
    """Return (the sums of every range, their number).

    If most indices of a range have a sum, all its values are sent without indices.
    """
    begin, end = ranges[comm.rank]
    counts = [row[0] for row in all_gather_ints(comm, [len(sums)])]
    for peer, (count, (a, b)) in enumerate(zip(counts, ranges, strict=True)):
        if not 0 <= count <= b - a:
            text = f"announced {count} sums in a range of {b - a} indices"
            raise ProtocolError(peer, f"sparse all_reduce: {text}")
    lengths = [_sum_bytes(b - a, n) for n, (a, b) in zip(counts, ranges, strict=True)]
    received = comm.all_gather_bytes(_pack_sums(sums, begin, end), lengths)
    gathered = zip(received, ranges, counts, strict=True)
    parts = [
        _unpack_sums(data, bounds, count, peer)
        for peer, (data, bounds, count) in enumerate(gathered)
    ]
    return parts, sum(counts)


def _is_dense(total: int, count: int) -> bool:
    """Return whether all values take fewer bytes than ``count`` entries."""
    return VALUE_BYTES * total <= sparse_format.num_bytes(total, count)


def _sum_bytes(total: int, count: int) -> int:
    if _is_dense(total, count):
        return VALUE_BYTES * total
    return sparse_format.num_bytes(total, count)


def _pack_sums(sums: SparseVector, begin: int, end: int) -> Bytes:
    if not _is_dense(end - begin, len(sums)):
        return sparse_format.pack(sums, end - begin, begin)
    values = np.zeros(end - begin, "<f4")
    values[sums.indices - begin] = sums.values
    return values.view(np.uint8)


def _unpack_sums(
    data: Bytes, bounds: tuple[int, int], count: int, peer: int
) -> SparseVector:
    begin, end = bounds
    if not _is_dense(end - begin, count):
        return sparse_format.unpack(data, end - begin, count, begin=begin, peer=peer)
    return SparseVector(np.arange(begin, end), data.view("<f4"))


def _sample_overlap(parts: Sequence[SparseVector], total: int) -> tuple[int, int]:
    """Return (distinct indices, entries) of all ranks in the first blocks."""
    num_blocks = -(-sparse_format.num_blocks(total) // SAMPLED_SHARE)
    end = num_blocks * sparse_format.BLOCK
    first = [part.indices[: np.searchsorted(part.indices, end)] for part in parts]
    indices = np.concatenate(first)
    return len(np.unique(indices)), len(indices)


def _add(parts: Sequence[SparseVector], out: Tensor) -> None:
    """Write the sum of ``parts`` to ``out``; no part has an index twice."""
    if out.is_cpu:
        array = as_array(out)
        array.fill(0)
        for part in parts:
            array[part.indices] += part.values
        return
    out.zero_()
    for part in parts:
        indices = torch.from_numpy(part.indices).to(out.device)
        values = torch.from_numpy(np.ascontiguousarray(part.values)).to(out.device)
        out[indices] += values
