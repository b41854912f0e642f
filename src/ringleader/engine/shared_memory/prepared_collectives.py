"""Small collectives in shared memory with all views made beforehand.

A prepared call is an exchange or a list of one-way steps, as in slot_collectives.py. It
leaves the same bytes and signals in the segments, so a rank may run its call prepared
while another rank does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ringleader.engine.arrays import Array, storage_dtype
from ringleader.engine.arrays_by_address import Addresses, Chunks, ChunksByAddress
from ringleader.engine.call import Call
from ringleader.engine.engine import HeaderMismatch, NextHeader, Prepared
from ringleader.engine.reductions import add_in_order
from ringleader.engine.shared_memory.arena import Arena, Slot
from ringleader.transport.shm_segment import Signal
from ringleader.wire.header import COUNT_OFFSET

Move = Callable[[int, Chunks], object]
"""Copies chunks into the slot of this number, or combines slots into chunks."""
Step = Callable[[bytes, Chunks], object]
"""One part of a one-way call, which has this header."""
Exchange = tuple[list[int], Move | None, Move | None]
"""(lengths of the chunks, how the own slot is filled, how all slots are used)."""
OneWay = tuple[list[int], list[Step]]
"""(lengths of the chunks, steps)."""
Use = Callable[[Array, Chunks], object]
"""Uses what a peer has published."""


def prepare(arena: Arena, call: Call, next_header: NextHeader) -> Prepared | None:
    """A function that does calls like ``call``; None if they need more than a slot."""
    views = _Views(arena, call)
    room_bytes = min(arena.geometry.exchange_bytes, arena.geometry.oneway_bytes)
    if max(call.lengths, default=0) * views.dtype.itemsize > room_bytes:
        return None
    if call.operation in EXCHANGES:
        lengths, fill, use = EXCHANGES[call.operation](views)
        chunks = ChunksByAddress(call.tensors, lengths, views.dtype)
        return _exchange(arena, next_header, chunks, fill, use)
    lengths, steps = ONE_WAYS[call.operation](views)
    chunks = ChunksByAddress(call.tensors, lengths, views.dtype)
    return _one_way(arena, next_header, chunks, steps)


class _Views:
    """What the functions below need of the arena and of the call."""

    def __init__(self, arena: Arena, call: Call) -> None:
        self.arena, self.call = arena, call
        self.rank, self.size, self.peers = arena.rank, arena.size, arena.peers
        self.dtype: np.dtype[Any] = storage_dtype(call.dtype)

    def of(self, slots: Sequence[Slot], start: int, length: int) -> list[Array]:
        """The elements from ``start`` on in each of ``slots``, which are one rank's."""
        a = start * self.dtype.itemsize
        b = a + length * self.dtype.itemsize
        return [slot.content[a:b].view(self.dtype) for slot in slots]

    def publish(
        self, chunk: int, length: int, readers: list[int], count: int | None = None
    ) -> Step:
        """Publish a chunk; ``count`` replaces that of the header."""
        slots = self.arena.oneways[self.rank]
        headers, blocks = [s.header for s in slots], self.of(slots, 0, length)
        claim, announce = self.arena.claim_oneway, self.arena.announce

        def step(header: bytes, chunks: Chunks) -> None:
            if count is not None:
                header = _stamp(header, count)
            k = claim()
            blocks[k][...] = chunks[chunk]
            headers[k][:] = header
            announce(k, readers)

        return step

    def consume(
        self, length: int, peer: int, use: Use, count: int | None = None
    ) -> Step:
        """Use what ``peer`` published; ``count`` replaces that of the header."""
        slots = self.arena.oneways[peer]
        headers, blocks = [s.header for s in slots], self.of(slots, 0, length)
        await_oneway, credit = self.arena.await_oneway, self.arena.credit(peer)

        def step(header: bytes, chunks: Chunks) -> None:
            if count is not None:
                header = _stamp(header, count)
            k = await_oneway(peer)
            if (other := headers[k].tobytes()) != header:
                raise HeaderMismatch(peer, other, header)
            use(blocks[k], chunks)
            credit()

        return step


def _stamp(header: bytes, count: int) -> bytes:
    end = COUNT_OFFSET + 8
    return header[:COUNT_OFFSET] + count.to_bytes(8, "little") + header[end:]


def _exchange(
    arena: Arena,
    next_header: NextHeader,
    chunks_at: ChunksByAddress,
    fill: Move | None,
    use: Move | None,
) -> Prepared:
    headers = [slot.header for slot in arena.exchanges[arena.rank]]
    posts = arena.post[Signal.POST]
    theirs = [
        (p, arena.take[Signal.POST][p], [slot.header for slot in arena.exchanges[p]])
        for p in arena.peers
    ]
    wait, next_turn = arena.wait, arena.next_turn

    def run(addresses: Addresses) -> None:
        header = next_header()
        arena.complete = 0
        k = next_turn()
        chunks = chunks_at[addresses]
        if fill is not None:
            fill(k, chunks)
        headers[k][:] = header
        for post in posts:
            post()
        for peer, take, seen in theirs:
            if not take(False):
                wait(take, peer)
            if (other := seen[k].tobytes()) != header:
                raise HeaderMismatch(peer, other, header)
        if use is not None:
            use(k, chunks)

    return run


def _one_way(
    arena: Arena,
    next_header: NextHeader,
    chunks_at: ChunksByAddress,
    steps: Sequence[Step],
) -> Prepared:
    def run(addresses: Addresses) -> None:
        header = next_header()
        arena.complete = 0
        chunks = chunks_at[addresses]
        for step in steps:
            step(header, chunks)

    return run


def _all_reduce(views: _Views) -> Exchange:
    count, combine = views.call.count, views.call.combine()
    divide = views.call.divide(views.size)
    by_rank = [views.of(slots, 0, count) for slots in views.arena.exchanges]
    mine = by_rank[views.rank]
    by_turn = list(zip(*by_rank, strict=True))

    def fill(k: int, chunks: Chunks) -> None:
        mine[k][...] = chunks[0]

    def use(k: int, chunks: Chunks) -> None:
        tensor = chunks[0]
        add_in_order(by_turn[k], tensor, combine)
        if divide is not None:
            divide(tensor)

    return [count], fill, use


def _reduce_scatter(views: _Views) -> Exchange:
    me, size, lengths = views.rank, views.size, views.call.lengths
    combine, divide = views.call.combine(), views.call.divide(size)
    exchanges, room = views.arena.exchanges, max(lengths)
    outgoing = [(p, views.of(exchanges[me], p * room, lengths[p])) for p in views.peers]
    incoming = [views.of(exchanges[p], me * room, lengths[me]) for p in views.peers]

    def fill(k: int, chunks: Chunks) -> None:
        for p, blocks in outgoing:
            blocks[k][...] = chunks[p]

    def use(k: int, chunks: Chunks) -> None:
        held, out = chunks[me], chunks[size]
        for blocks in incoming:
            combine(held, blocks[k], out)
            held = out
        if divide is not None:
            divide(out)

    return [*lengths, lengths[me]], fill, use


def _all_gather(views: _Views) -> Exchange:
    me, lengths = views.rank, views.call.lengths
    exchanges, own = views.arena.exchanges, 1 + me
    mine = views.of(exchanges[me], 0, lengths[me])
    theirs = [(1 + p, views.of(exchanges[p], 0, lengths[p])) for p in views.peers]

    def fill(k: int, chunks: Chunks) -> None:
        mine[k][...] = chunks[0]

    def use(k: int, chunks: Chunks) -> None:
        chunks[own][...] = chunks[0]
        for out, blocks in theirs:
            chunks[out][...] = blocks[k]

    return [lengths[me], *lengths], fill, use


def _broadcast(views: _Views) -> OneWay:
    count, root = views.call.count, views.call.root
    assert root is not None
    if views.rank == root:
        return [count], [views.publish(0, count, views.peers)]
    return [count], [views.consume(count, root, _copy_to(0))]


def _reduce(views: _Views) -> OneWay:
    count, root = views.call.count, views.call.root
    assert root is not None
    if views.rank != root:
        return [count], [views.publish(0, count, [root])]
    combine, divide = views.call.combine(), views.call.divide(views.size)

    def add(block: Array, chunks: Chunks) -> None:
        combine(chunks[0], block, chunks[0])

    steps = [views.consume(count, p, add) for p in views.peers]
    if divide is not None:
        steps.append(lambda _header, chunks: divide(chunks[0]))
    return [count], steps


def _gather(views: _Views) -> OneWay:
    count, root = views.call.count, views.call.root
    assert root is not None
    if views.rank != root:
        return [count], [views.publish(0, count, [root])]
    steps = [views.consume(count, p, _copy_to(1 + p)) for p in views.peers]
    return [count] * (1 + views.size), [*steps, _copy_own(0, 1 + root)]


def _scatter(views: _Views) -> OneWay:
    count, root = views.call.count, views.call.root
    assert root is not None
    if views.rank != root:
        return [count], [views.consume(count, root, _copy_to(0))]
    steps = [views.publish(p, count, [p]) for p in views.peers]
    return [count] * (views.size + 1), [*steps, _copy_own(root, views.size)]


def _all_to_all(views: _Views) -> OneWay:
    """In the order of slot_collectives.all_to_all."""
    me, n, pairs = views.rank, views.size, views.call.pairs
    steps: list[Step] = []
    for i in range(1, n):
        dst, src = (me + i) % n, (me - i) % n
        sent, received = pairs[dst][0], pairs[src][1]
        steps.append(views.publish(dst, sent, [dst], sent))
        steps.append(views.consume(received, src, _copy_to(n + src), received))
    lengths = [pairs[p][0] for p in range(n)] + [pairs[p][1] for p in range(n)]
    return lengths, [*steps, _copy_own(me, n + me)]


def _copy_to(chunk: int) -> Use:
    def use(block: Array, chunks: Chunks) -> None:
        chunks[chunk][...] = block

    return use


def _copy_own(source: int, out: int) -> Step:
    def step(_header: bytes, chunks: Chunks) -> None:
        chunks[out][...] = chunks[source]

    return step


EXCHANGES: dict[str, Callable[[_Views], tuple[list[int], Move | None, Move | None]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "barrier": lambda _views: ([], None, None),
}
ONE_WAYS: dict[str, Callable[[_Views], OneWay]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}
