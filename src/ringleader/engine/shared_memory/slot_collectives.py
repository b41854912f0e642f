"""Collectives in shared memory, one function per operation, except the relay.

Costs are copies: a one-shot all_reduce copies S bytes in and adds n S; all_gather
copies S/n in and (n-1)/n S out; broadcast copies S in at the root and S out elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ringleader.engine.arrays import Array, Bytes, address_of
from ringleader.engine.call import Call, present
from ringleader.engine.reductions import Combine, add_in_order
from ringleader.engine.shared_memory.arena import Arena


def _starts(length: int, step: int) -> list[int]:
    """The starts of pieces of ``step``; at least one piece, to carry the header."""
    return list(range(0, length, step)) or [0]


def barrier(arena: Arena, _call: Call, header: bytes) -> None:
    """Return when every rank has called it."""
    arena.rounds(header, 1, lambda _c, _content: None, lambda _c, _blocks: None)


def all_reduce(arena: Arena, call: Call, header: bytes) -> None:
    """In one exchange: every rank adds all ranks' values. They must fit a slot."""
    source, out, combine = call.input, call.output, call.combine()
    num_bytes, raw = source.nbytes, source.view(np.uint8)

    def fill(_c: int, content: Bytes) -> None:
        content[:num_bytes] = raw

    def use(_c: int, blocks: list[Bytes]) -> None:
        views = [b[:num_bytes].view(source.dtype) for b in blocks]
        add_in_order(views, out, combine)

    arena.rounds(header, 1, fill, use)
    _finish(arena, call, out)


def reduce_scatter(arena: Arena, call: Call, header: bytes) -> None:
    """In one exchange: every rank adds the parts meant for it."""
    me = arena.rank
    sources, out = [present(s) for s in call.inputs], present(call.outputs[me])
    dtype, combine = out.dtype, call.combine()
    room = max(call.lengths)

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
    _finish(arena, call, out)


def all_gather(arena: Arena, call: Call, header: bytes) -> None:
    """In exchanges of one slot each; lengths may differ, as all ranks know them."""
    source, outs = present(call.inputs[arena.rank]), [present(o) for o in call.outputs]
    step = arena.copied_bytes // source.itemsize
    starts = _starts(max(call.lengths), step)
    own = outs[arena.rank]
    is_in_place = address_of(own) == address_of(source)

    def fill(c: int, content: Bytes) -> None:
        piece = source[starts[c] : starts[c] + step]
        arena.copy(content.view(source.dtype)[: len(piece)], piece)
        if not is_in_place:  # now, while the piece is in the cache
            arena.copy(own[starts[c] : starts[c] + step], piece)

    def use(c: int, blocks: list[Bytes]) -> None:
        for p in arena.peers:
            piece = outs[p][starts[c] : starts[c] + step]
            arena.copy(piece, blocks[p].view(source.dtype)[: len(piece)])

    arena.rounds(header, len(starts), fill, use)


def broadcast(arena: Arena, call: Call, header: bytes) -> None:
    """The root publishes its tensor piece by piece to all other ranks."""
    root = call.root
    assert root is not None
    tensor = call.input if arena.rank == root else call.output
    step = arena.copied_bytes // tensor.itemsize
    for start in _starts(len(tensor), step):
        piece = tensor[start : start + step]
        if arena.rank == root:
            arena.publish(header, arena.peers, _filler(arena, piece))
        else:
            arena.consume(header, root, _reader(arena, piece))
        arena.complete = start + len(piece)


def reduce(arena: Arena, call: Call, header: bytes) -> None:
    """The root adds the other ranks' tensors in rank order to its own."""
    root, source, out = call.root, call.input, call.outputs[0]
    assert root is not None
    combine, divide = call.combine(), call.divide(arena.size)
    step = arena.geometry.slot_bytes // source.itemsize
    for start in _starts(len(source), step):
        mine = source[start : start + step]
        if out is None:
            arena.publish(header, [root], _filler(arena, mine))
            continue
        result = out[start : start + step]
        for p in arena.peers:
            arena.consume(header, p, _combiner(combine, mine, result))
            mine = result
        if divide is not None:
            divide(result)
        arena.complete = start + len(result)


def gather(arena: Arena, call: Call, header: bytes) -> None:
    """Every other rank publishes its tensor to the root."""
    root, source = call.root, present(call.inputs[arena.rank])
    assert root is not None
    step = arena.copied_bytes // source.itemsize
    if arena.rank != root:
        for start in _starts(len(source), step):
            arena.publish(header, [root], _filler(arena, source[start : start + step]))
        return
    outs = [present(o) for o in call.outputs]
    for start in _starts(max(len(outs[p]) for p in arena.peers), step):
        for p in arena.peers:
            if start < len(outs[p]) or start == 0:
                arena.consume(header, p, _reader(arena, outs[p][start : start + step]))
    arena.copy(outs[root], source)


def scatter(arena: Arena, call: Call, header: bytes) -> None:
    """The root publishes a part to every other rank."""
    root, out = call.root, present(call.outputs[arena.rank])
    assert root is not None
    step = arena.copied_bytes // out.itemsize
    if arena.rank != root:
        for start in _starts(len(out), step):
            arena.consume(header, root, _reader(arena, out[start : start + step]))
        return
    sources = [present(s) for s in call.inputs]
    for start in _starts(max(len(sources[p]) for p in arena.peers), step):
        for p in arena.peers:
            if start < len(sources[p]) or start == 0:
                piece = sources[p][start : start + step]
                arena.publish(header, [p], _filler(arena, piece))
    arena.copy(out, sources[root])


def all_to_all(arena: Arena, call: Call, header: bytes) -> None:
    """Every rank publishes a part to every other rank.

    Lengths differ per pair and only the pair knows them, so each pair has its own
    number of rounds.
    """
    me, n = arena.rank, arena.size
    sources = [present(call.inputs[me * n + p]) for p in range(n)]
    outs = [present(call.outputs[p * n + me]) for p in range(n)]
    headers = call.headers(header, me, n)
    step = arena.copied_bytes // outs[0].itemsize
    longest = max(len(a) for p in arena.peers for a in (sources[p], outs[p]))
    for start in _starts(longest, step):
        # In step i every rank publishes for the i-th next rank and reads from the i-th
        # previous one, so no rank can wait for a credit that depends on itself.
        for i in range(1, n):
            dst, src = (me + i) % n, (me - i) % n
            if start < len(sources[dst]) or start == 0:
                piece = sources[dst][start : start + step]
                arena.publish(headers[dst][0], [dst], _filler(arena, piece))
            if start < len(outs[src]) or start == 0:
                piece = outs[src][start : start + step]
                arena.consume(headers[src][1], src, _reader(arena, piece))
    arena.copy(outs[me], sources[me])


def _finish(arena: Arena, call: Call, out: Array) -> None:
    divide = call.divide(arena.size)
    if divide is not None:
        divide(out)
    arena.complete = len(out)


def _filler(arena: Arena, piece: Array) -> Callable[[Bytes], None]:
    def fill(content: Bytes) -> None:
        arena.copy(content.view(piece.dtype)[: len(piece)], piece)

    return fill


def _reader(arena: Arena, piece: Array) -> Callable[[Bytes], None]:
    def read(content: Bytes) -> None:
        arena.copy(piece, content.view(piece.dtype)[: len(piece)])

    return read


def _combiner(combine: Combine, mine: Array, result: Array) -> Callable[[Bytes], None]:
    def read(content: Bytes) -> None:
        combine(mine, content.view(mine.dtype)[: len(mine)], result)

    return read
