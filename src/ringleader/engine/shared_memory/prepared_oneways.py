"""Prepared one-way calls: steps in which a rank fills a slot for some readers, or reads
one that a peer filled for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ringleader.engine.arrays import Array
from ringleader.engine.arrays_by_address import Addresses, Chunks
from ringleader.engine.engine import (
    Finish,
    Forms,
    HeaderMismatch,
    NextHeader,
)
from ringleader.engine.shared_memory.prepared_views import Views
from ringleader.transport.shm_segment import Signal
from ringleader.wire.header import COUNT_OFFSET

Do = Callable[[bytes, Chunks], object]
"""Does one part of a call, which has this header; it may wait."""
Try = Callable[[bytes, Chunks], bool]
"""Does the same unless it would have to wait for long; returns whether it did."""
Step = tuple[Do, Try]
Blocks = Sequence[Array] | Sequence[memoryview]
"""The contents of the slots of one rank."""
OneWay = tuple[list[int], list[Step]]
"""(lengths of the chunks, steps)."""
Use = Callable[[Any, Chunks], object]
"""Uses what a peer has published: its bytes, or an array."""


def prepare(views: Views, next_header: NextHeader) -> Forms:
    """Functions that do calls like that of ``views``."""
    arena = views.arena
    lengths, steps = OPERATIONS[views.call.operation](views)
    chunks_at = views.chunks(lengths)
    parts = [do for do, _ in steps]
    attempts = [attempt for _, attempt in steps]

    def run(addresses: Addresses) -> None:
        header = next_header()
        arena.complete = 0
        chunks = chunks_at[addresses]
        for do in parts:
            do(header, chunks)

    def start(addresses: Addresses) -> Finish | None:
        header = next_header()
        arena.complete = 0
        chunks = chunks_at[addresses]
        for number, attempt in enumerate(attempts):
            if not attempt(header, chunks):
                return partial(finish, header, chunks, number)
        return None

    def finish(header: bytes, chunks: Chunks, number: int) -> None:
        for do in parts[number:]:
            do(header, chunks)

    return Forms(run, start)


def _publish(
    views: Views,
    chunk: int,
    length: int,
    readers: Sequence[int],
    count: int | None = None,
) -> Step:
    """Publish a chunk; ``count`` replaces that of the header."""
    arena = views.arena
    slots = arena.oneways[views.rank]
    headers, blocks = [s.header for s in slots], views.bytes_of(slots, 0, length)
    claim, can_claim, announce = arena.claim_oneway, arena.can_claim, arena.announce

    def publish(header: bytes, chunks: Chunks) -> None:
        if count is not None:
            header = _stamp(header, count)
        k = claim()
        blocks[k][:] = chunks[chunk]
        headers[k][:] = header
        announce(k, readers)

    def attempt(header: bytes, chunks: Chunks) -> bool:
        if not can_claim():
            return False
        publish(header, chunks)
        return True

    return publish, attempt


def _consume(
    views: Views, blocks: Blocks, peer: int, use: Use, count: int | None = None
) -> Step:
    """Use one of the ``blocks`` of ``peer``; ``count`` replaces that of the header."""
    arena = views.arena
    headers = [slot.header for slot in arena.oneways[peer]]
    take, credit = arena.take[Signal.ONEWAY][peer], arena.credit(peer)
    wait, takes_soon, announced = arena.wait, arena.takes_soon, arena.announced

    def consume(header: bytes, chunks: Chunks) -> None:
        if count is not None:
            header = _stamp(header, count)
        k = announced(peer)
        if (other := headers[k].tobytes()) != header:
            raise HeaderMismatch(peer, other, header)
        use(blocks[k], chunks)
        credit()

    def wait_and_consume(header: bytes, chunks: Chunks) -> None:
        if not take(False):
            wait(take, peer)
        consume(header, chunks)

    def attempt(header: bytes, chunks: Chunks) -> bool:
        if not takes_soon(take):
            return False
        consume(header, chunks)
        return True

    return wait_and_consume, attempt


def _receive(
    views: Views, length: int, peer: int, chunk: int, count: int | None = None
) -> Step:
    """Copy what ``peer`` published to a chunk."""

    def copy(block: memoryview, chunks: Chunks) -> None:
        chunks[chunk][:] = block

    blocks = views.bytes_of(views.arena.oneways[peer], 0, length)
    return _consume(views, blocks, peer, copy, count)


def _local(do: Callable[[Chunks], object]) -> Step:
    """A step that concerns no peer."""

    def attempt(_header: bytes, chunks: Chunks) -> bool:
        do(chunks)
        return True

    return attempt, attempt


def _stamp(header: bytes, count: int) -> bytes:
    end = COUNT_OFFSET + 8
    return header[:COUNT_OFFSET] + count.to_bytes(8, "little") + header[end:]


def _broadcast(views: Views) -> OneWay:
    count, root = views.call.count, views.call.root
    assert root is not None
    if views.rank == root:
        return [count], [_publish(views, 0, count, views.peers)]
    return [count], [_receive(views, count, root, 0)]


def _reduce(views: Views) -> OneWay:
    count, root = views.call.count, views.call.root
    assert root is not None
    if views.rank != root:
        return [count], [_publish(views, 0, count, [root])]
    combine, divide = views.call.combine(), views.call.divide(views.size)

    def add(block: Array, chunks: Chunks) -> None:
        combine(chunks[1], block, chunks[1])  # the array follows the bytes

    oneways = views.arena.oneways
    steps = [
        _consume(views, views.of(oneways[p], 0, count), p, add) for p in views.peers
    ]
    if divide is not None:
        steps.append(_local(lambda chunks: divide(chunks[1])))
    return [count], steps


def _gather(views: Views) -> OneWay:
    count, root = views.call.count, views.call.root
    assert root is not None
    if views.rank != root:
        return [count], [_publish(views, 0, count, [root])]
    steps = [_receive(views, count, p, 1 + p) for p in views.peers]
    return [count] * (1 + views.size), [*steps, _copy_own(0, 1 + root)]


def _scatter(views: Views) -> OneWay:
    count, root = views.call.count, views.call.root
    assert root is not None
    if views.rank != root:
        return [count], [_receive(views, count, root, 0)]
    steps = [_publish(views, p, count, [p]) for p in views.peers]
    return [count] * (views.size + 1), [*steps, _copy_own(root, views.size)]


def _all_to_all(views: Views) -> OneWay:
    """In the order of slot_collectives.all_to_all."""
    me, n, pairs = views.rank, views.size, views.call.pairs
    steps: list[Step] = []
    for i in range(1, n):
        dst, src = (me + i) % n, (me - i) % n
        sent, received = pairs[dst][0], pairs[src][1]
        steps.append(_publish(views, dst, sent, [dst], sent))
        steps.append(_receive(views, received, src, n + src, received))
    lengths = [pairs[p][0] for p in range(n)] + [pairs[p][1] for p in range(n)]
    return lengths, [*steps, _copy_own(me, n + me)]


def _copy_own(source: int, out: int) -> Step:
    def copy(chunks: Chunks) -> None:
        chunks[out][:] = chunks[source]

    return _local(copy)


OPERATIONS: dict[str, Callable[[Views], OneWay]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}
