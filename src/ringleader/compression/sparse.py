"""The sum of sparse vectors, one from each rank, on every rank.

Every place is added up in the order of ranks, starting from zero, whichever way the
entries travel: all ranks, and all ways, end with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import entries as packed
from ringleader.compression.cost import VALUE_BYTES, Way, choose, ranges
from ringleader.compression.entries import Bytes, Entries
from ringleader.compression.peers import Peers, gather_numbers
from ringleader.engine.arrays import as_array
from ringleader.errors import ProtocolError

MILLION = 1_000_000
PROBE = 16
"""One of so many blocks is looked at to see how much ranks choose alike."""


class SparseSum:
    """Adds up sparse vectors, and remembers how alike the ranks chose."""

    def __init__(self) -> None:
        self._overlap: float | None = None

    def add_up(self, mine: Entries, out: Tensor, peers: Peers) -> None:
        """Everybody's entries, added up in the flat float32 ``out``, else zero."""
        total = len(out)
        parts = ranges(total, peers.size)
        edges = np.searchsorted(mine.places, [begin for begin, _ in parts]).tolist()
        here = np.diff([*edges, len(mine)]).tolist()
        guess = round(MILLION * self._overlap) if self._overlap else 0
        counts = gather_numbers(peers, [guess, *here])
        _check(counts, parts)
        overlap = counts[0][0] / MILLION or None  # of rank 0, so that all think alike
        held = [row[1:] for row in counts]
        most = max(map(sum, held))
        way, _ = choose(total, most, peers.size, overlap=overlap, is_chosen=True)
        if way is Way.OWNERS:
            sums = _sum_of_mine(mine, held, parts, peers)
            everybody, union = _gather_sums(sums, parts, peers)
            summed = sum(map(sum, held))
        else:
            everybody = _gather(mine, [sum(row) for row in held], total, peers)
            union, summed = _probe(everybody, total)
        self._overlap = union / summed if summed else None
        _add(everybody, out)


def _check(counts: list[list[int]], parts: list[tuple[int, int]]) -> None:
    """No rank may say that it has more entries than there are places."""
    for peer, (guess, *held) in enumerate(counts):
        fits = all(0 <= n <= b - a for n, (a, b) in zip(held, parts, strict=True))
        if not fits or not 0 <= guess <= MILLION:
            text = f"says it has {held} entries, in {parts}"
            raise ProtocolError(peer, f"sparse values: {text}")


def _cut(entries: Entries, a: int, b: int) -> Entries:
    return Entries(entries.places[a:b], entries.values[a:b])


def _gather(
    mine: Entries, counts: Sequence[int], total: int, peers: Peers
) -> list[Entries]:
    """Everybody's entries."""
    lengths = [packed.num_bytes(total, count) for count in counts]
    received = peers.gather(packed.pack(mine, total), lengths)
    return [
        packed.unpack(data, total, count, peer=peer)
        for peer, (data, count) in enumerate(zip(received, counts, strict=True))
    ]


def _sum_of_mine(
    mine: Entries, counts: list[list[int]], parts: list[tuple[int, int]], peers: Peers
) -> Entries:
    """The sums of the range that this rank owns; others get what is theirs to sum.

    ``counts``: of each rank, how many entries lie in each range.
    """
    rank = peers.rank
    begin, end = parts[rank]
    edges = np.cumsum([0, *counts[rank]]).tolist()
    sent = [
        packed.pack(_cut(mine, a, b), stop - start, start)
        for a, b, (start, stop) in zip(edges[:-1], edges[1:], parts, strict=True)
    ]
    here = [row[rank] for row in counts]
    lengths = [packed.num_bytes(end - begin, count) for count in here]
    received = peers.swap(sent, lengths)
    arrived = [
        packed.unpack(data, end - begin, count, begin=begin, peer=peer)
        for peer, (data, count) in enumerate(zip(received, here, strict=True))
    ]
    return _sum(arrived, begin, end)


def _sum(arrived: Sequence[Entries], begin: int, end: int) -> Entries:
    """The sum of entries, at every place that anybody chose."""
    values = np.zeros(end - begin, np.float32)
    chosen = np.zeros(end - begin, np.bool_)
    for part in arrived:
        values[part.places - begin] += part.values
        chosen[part.places - begin] = True
    places = np.flatnonzero(chosen)
    return Entries(places + begin, values[places])


def _gather_sums(
    sums: Entries, parts: list[tuple[int, int]], peers: Peers
) -> tuple[list[Entries], int]:
    """(every owner's sums, how many they are).

    Of a range that is nearly full all values travel, as they are.
    """
    begin, end = parts[peers.rank]
    counts = [row[0] for row in gather_numbers(peers, [len(sums)])]
    for peer, (count, (a, b)) in enumerate(zip(counts, parts, strict=True)):
        if not 0 <= count <= b - a:
            text = f"says it has {count} sums, in {b - a} places"
            raise ProtocolError(peer, f"sparse values: {text}")
    lengths = [_sum_bytes(b - a, n) for n, (a, b) in zip(counts, parts, strict=True)]
    received = peers.gather(_pack_sums(sums, begin, end), lengths)
    everybody = [
        _unpack_sums(data, part, count, peer)
        for peer, (data, part, count) in enumerate(
            zip(received, parts, counts, strict=True)
        )
    ]
    return everybody, sum(counts)


def _is_full(total: int, count: int) -> bool:
    return VALUE_BYTES * total <= packed.num_bytes(total, count)


def _sum_bytes(total: int, count: int) -> int:
    return (
        VALUE_BYTES * total
        if _is_full(total, count)
        else packed.num_bytes(total, count)
    )


def _pack_sums(sums: Entries, begin: int, end: int) -> Bytes:
    if not _is_full(end - begin, len(sums)):
        return packed.pack(sums, end - begin, begin)
    values = np.zeros(end - begin, "<f4")
    values[sums.places - begin] = sums.values
    return values.view(np.uint8)


def _unpack_sums(data: Bytes, part: tuple[int, int], count: int, peer: int) -> Entries:
    begin, end = part
    if not _is_full(end - begin, count):
        return packed.unpack(data, end - begin, count, begin=begin, peer=peer)
    return Entries(np.arange(begin, end), data.view("<f4"))


def _probe(everybody: Sequence[Entries], total: int) -> tuple[int, int]:
    """(places that anybody chose, entries) of the first blocks."""
    end = -(-packed.num_blocks(total) // PROBE) * packed.BLOCK
    first = [part.places[: np.searchsorted(part.places, end)] for part in everybody]
    places = np.concatenate(first)
    return len(np.unique(places)), len(places)


def _add(everybody: Sequence[Entries], out: Tensor) -> None:
    """Zero ``out``, then add one rank after the other; a place occurs once in each."""
    if out.is_cpu:
        array = as_array(out)
        array.fill(0)
        for part in everybody:
            array[part.places] += part.values
        return
    out.zero_()
    for part in everybody:
        places = torch.from_numpy(part.places).to(out.device)
        values = torch.from_numpy(np.ascontiguousarray(part.values)).to(out.device)
        out[places] += values
