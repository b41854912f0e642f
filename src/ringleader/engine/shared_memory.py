"""Collectives in shared memory, one function each, on flat arrays.

All results are made in one place, or in rank order, so ranks agree to the bit.
Costs are copies: all_reduce 1-shot S in and n S added, relay 2 S, see relay.py;
reduce_scatter S in a relay; all_gather S/n in, (n-1)/n S out;
broadcast S in at the root, S out elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ringleader.engine.arena import Arena, Array, Bytes, Finish
from ringleader.engine.reductions import Combine


def _starts(length: int, step: int) -> list[int]:
    """Where pieces of ``step`` begin; there is always one, if only for its header."""
    return list(range(0, length, step)) or [0]


def barrier(arena: Arena, header: bytes) -> None:
    """Everybody has come."""
    arena.rounds(header, 1, lambda _c, _content: None, lambda _c, _blocks: None)


def all_reduce(
    arena: Arena,
    header: bytes,
    source: Array,
    out: Array,
    combine: Combine,
    finish: Finish | None,
) -> None:
    """One-shot for what is small, a relay beyond.

    ``finish`` is applied to every run of finished sums, by who owns it.
    """
    if source.nbytes > arena.one_shot_bytes:
        arena.relay.all_reduce(header, source, out, combine, finish)
        return
    num_bytes, raw = source.nbytes, source.view(np.uint8)

    def fill(_c: int, content: Bytes) -> None:
        content[:num_bytes] = raw

    def use(_c: int, blocks: list[Bytes]) -> None:
        views = [b[:num_bytes].view(source.dtype) for b in blocks]
        combine(views[0], views[1], out)
        for view in views[2:]:
            combine(out, view, out)

    arena.rounds(header, 1, fill, use)
    if finish is not None:
        finish(out)
    arena.complete = len(out)


def reduce_scatter(
    arena: Arena,
    header: bytes,
    sources: Sequence[Array],
    out: Array,
    combine: Combine,
    finish: Finish | None,
) -> None:
    """``sources[i]`` is for rank i; ``out`` is mine."""
    me, dtype = arena.rank, out.dtype
    room = max(len(s) for s in sources)
    if arena.size * room * out.itemsize > arena.one_shot_bytes:
        arena.relay.reduce_scatter(header, sources, out, combine, finish)
        return

    def fill(_c: int, content: Bytes) -> None:
        parts = content.view(dtype)
        for p in arena.peers:
            np.copyto(parts[p * room : p * room + len(sources[p])], sources[p])

    def use(_c: int, blocks: list[Bytes]) -> None:
        held = sources[me]
        for p in arena.peers:
            combine(held, blocks[p].view(dtype)[me * room : me * room + len(out)], out)
            held = out

    arena.rounds(header, 1, fill, use)
    if finish is not None:
        finish(out)
    arena.complete = len(out)


def all_gather(
    arena: Arena, header: bytes, source: Array, outs: Sequence[Array]
) -> None:
    """``outs[i]`` receives rank i's tensor; lengths may differ, all know them."""
    step = arena.geometry.exchange_bytes // source.itemsize
    starts = _starts(max(len(o) for o in outs), step)

    own = outs[arena.rank]
    is_in_place = own.ctypes.data == source.ctypes.data

    def fill(c: int, content: Bytes) -> None:
        piece = source[starts[c] : starts[c] + step]
        np.copyto(content.view(source.dtype)[: len(piece)], piece)
        if not is_in_place:  # now, while the piece is in the cache
            np.copyto(own[starts[c] : starts[c] + step], piece)

    def use(c: int, blocks: list[Bytes]) -> None:
        for p in arena.peers:
            piece = outs[p][starts[c] : starts[c] + step]
            np.copyto(piece, blocks[p].view(source.dtype)[: len(piece)])

    arena.rounds(header, len(starts), fill, use)


def broadcast(arena: Arena, header: bytes, tensor: Array, root: int) -> None:
    """The root's tensor, piece by piece, to everybody."""
    step = arena.geometry.oneway_bytes // tensor.itemsize
    for start in _starts(len(tensor), step):
        piece = tensor[start : start + step]
        if arena.rank == root:
            arena.publish(header, arena.peers, _filler(piece))
        else:
            arena.consume(header, root, _reader(piece))
        arena.complete = start + len(piece)


def reduce(
    arena: Arena,
    header: bytes,
    source: Array,
    out: Array | None,
    combine: Combine,
    root: int,
) -> None:
    """Everybody's tensor, added by the root in rank order after its own."""
    step = arena.geometry.oneway_bytes // source.itemsize
    for start in _starts(len(source), step):
        mine = source[start : start + step]
        if out is None:
            arena.publish(header, [root], _filler(mine))
            continue
        result = out[start : start + step]
        for p in arena.peers:
            arena.consume(header, p, _combiner(combine, mine, result))
            mine = result
        arena.complete = start + len(result)


def gather(
    arena: Arena, header: bytes, source: Array, outs: Sequence[Array] | None, root: int
) -> None:
    """``outs[i]``, at the root, receives rank i's tensor."""
    step = arena.geometry.oneway_bytes // source.itemsize
    if outs is None:
        for start in _starts(len(source), step):
            arena.publish(header, [root], _filler(source[start : start + step]))
        return
    longest = max(len(outs[p]) for p in arena.peers)
    for start in _starts(longest, step):
        for p in arena.peers:
            if start < len(outs[p]) or start == 0:
                arena.consume(header, p, _reader(outs[p][start : start + step]))
    np.copyto(outs[root], source)


def scatter(
    arena: Arena, header: bytes, sources: Sequence[Array] | None, out: Array, root: int
) -> None:
    """``sources[i]``, at the root, goes to rank i."""
    step = arena.geometry.oneway_bytes // out.itemsize
    if sources is None:
        for start in _starts(len(out), step):
            arena.consume(header, root, _reader(out[start : start + step]))
        return
    longest = max(len(sources[p]) for p in arena.peers)
    for start in _starts(longest, step):
        for p in arena.peers:
            if start < len(sources[p]) or start == 0:
                piece = sources[p][start : start + step]
                arena.publish(header, [p], _filler(piece))
    np.copyto(out, sources[root])


def all_to_all(
    arena: Arena,
    headers: dict[int, tuple[bytes, bytes]],
    sources: Sequence[Array],
    outs: Sequence[Array],
) -> None:
    """``sources[i]`` goes to rank i, ``outs[i]`` comes from it.

    Lengths differ per pair and only the pair knows them, so each pair has its own
    number of rounds; ``headers``: peer -> (ours, the expected).
    """
    step = arena.geometry.oneway_bytes // outs[0].itemsize
    longest = max(len(a) for p in arena.peers for a in (sources[p], outs[p]))
    for start in _starts(longest, step):
        # In step i everybody publishes for the i-th rank on and reads from the
        # i-th back: no rank can wait for a credit that waits for itself.
        for i in range(1, arena.size):
            to, source = (arena.rank + i) % arena.size, (arena.rank - i) % arena.size
            if start < len(sources[to]) or start == 0:
                piece = sources[to][start : start + step]
                arena.publish(headers[to][0], [to], _filler(piece))
            if start < len(outs[source]) or start == 0:
                piece = outs[source][start : start + step]
                arena.consume(headers[source][1], source, _reader(piece))
    np.copyto(outs[arena.rank], sources[arena.rank])


def _filler(piece: Array) -> Callable[[Bytes], None]:
    def fill(content: Bytes) -> None:
        np.copyto(content.view(piece.dtype)[: len(piece)], piece)

    return fill


def _reader(piece: Array) -> Callable[[Bytes], None]:
    def read(content: Bytes) -> None:
        np.copyto(piece, content.view(piece.dtype)[: len(piece)])

    return read


def _combiner(combine: Combine, mine: Array, result: Array) -> Callable[[Bytes], None]:
    def read(content: Bytes) -> None:
        combine(mine, content.view(mine.dtype)[: len(mine)], result)

    return read
