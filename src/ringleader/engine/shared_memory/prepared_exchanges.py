"""Prepared exchanges: every rank fills its slot, posts, and reads the slots of all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ringleader.engine.arrays_by_address import Addresses, Chunks
from ringleader.engine.engine import (
    Finish,
    Forms,
    HeaderMismatch,
    NextHeader,
    Prepared,
)
from ringleader.engine.reductions import add_in_order
from ringleader.engine.shared_memory import prepared_pairs
from ringleader.engine.shared_memory.prepared_views import Views
from ringleader.transport.shm_segment import Signal

Move = Callable[[int, Chunks], object]
"""Copies chunks into the slot of this number, or combines slots into chunks."""
Exchange = tuple[list[int], Move, Move]
"""(lengths of the chunks, how the own slot is filled, how all slots are used)."""


def prepare(views: Views, next_header: NextHeader) -> Forms:
    """Functions that do calls like that of ``views``."""
    exchange = _PreparedExchange(views, next_header)
    if views.size == 2 and views.call.operation in prepared_pairs.OPERATIONS:
        run = prepared_pairs.run_function(views, next_header)
    else:
        run = exchange.run_function()
    return Forms(run, exchange.start)


class _PreparedExchange:
    """Exchanges of one kind."""

    def __init__(self, views: Views, next_header: NextHeader) -> None:
        arena = views.arena
        lengths, self._fill, self._use = OPERATIONS[views.call.operation](views)
        self._arena = arena
        self._next_header = next_header
        self._chunks_at = views.chunks(lengths)
        self._headers = [slot.header for slot in arena.exchanges[arena.rank]]
        takes, slots = arena.take[Signal.POST], arena.exchanges
        self._theirs = [
            (p, takes[p], [s.header for s in slots[p]]) for p in views.peers
        ]

    def run_function(self) -> Prepared:
        """The function that does one exchange; everything is a local variable of it."""
        arena, next_header, chunks_at = self._arena, self._next_header, self._chunks_at
        fill, use, headers, theirs = self._fill, self._use, self._headers, self._theirs
        posts, next_turn, wait = arena.post[Signal.POST], arena.next_turn, arena.wait

        def run(addresses: Addresses) -> None:
            header = next_header()
            arena.complete = 0
            k = next_turn()
            chunks = chunks_at[addresses]
            fill(k, chunks)
            headers[k][:] = header
            for post in posts:
                post()
            for peer, take, seen in theirs:
                if not take(False):
                    wait(take, peer)
                if (other := seen[k].tobytes()) != header:
                    raise HeaderMismatch(peer, other, header)
            use(k, chunks)

        return run

    def start(self, addresses: Addresses) -> Finish | None:
        """Fill the slot, and use all if the peers have filled theirs or do so soon."""
        header = self._next_header()
        self._arena.complete = 0
        k = self._arena.next_turn()
        chunks = self._chunks_at[addresses]
        self._fill(k, chunks)
        self._headers[k][:] = header
        for post in self._arena.post[Signal.POST]:
            post()
        for number, (peer, take, seen) in enumerate(self._theirs):
            if not self._arena.takes_soon(take):
                return partial(self._finish, header, k, chunks, number)
            _check(peer, seen[k], header)
        self._use(k, chunks)
        return None

    def _finish(self, header: bytes, k: int, chunks: Chunks, number: int) -> None:
        for peer, take, seen in self._theirs[number:]:
            self._arena.wait(take, peer)
            _check(peer, seen[k], header)
        self._use(k, chunks)


def _check(peer: int, seen: memoryview, header: bytes) -> None:
    if (other := seen.tobytes()) != header:
        raise HeaderMismatch(peer, other, header)


def _all_reduce(views: Views) -> Exchange:
    count, combine = views.call.count, views.call.combine()
    divide = views.call.divide(views.size)
    by_rank = [views.of(slots, 0, count) for slots in views.arena.exchanges]
    mine = views.bytes_of(views.arena.exchanges[views.rank], 0, count)
    by_turn = list(zip(*by_rank, strict=True))

    def fill(k: int, chunks: Chunks) -> None:
        mine[k][:] = chunks[0]

    def use(k: int, chunks: Chunks) -> None:
        tensor = chunks[1]
        add_in_order(by_turn[k], tensor, combine)
        if divide is not None:
            divide(tensor)

    return [count], fill, use


def _reduce_scatter(views: Views) -> Exchange:
    me, size, lengths = views.rank, views.size, views.call.lengths
    combine, divide = views.call.combine(), views.call.divide(size)
    exchanges, room = views.arena.exchanges, max(lengths)
    outgoing = [
        (p, views.bytes_of(exchanges[me], p * room, lengths[p])) for p in views.peers
    ]
    incoming = [views.of(exchanges[p], me * room, lengths[me]) for p in views.peers]
    mine, result = size + 1 + me, size + 1 + size  # arrays follow all bytes

    def fill(k: int, chunks: Chunks) -> None:
        for p, blocks in outgoing:
            blocks[k][:] = chunks[p]

    def use(k: int, chunks: Chunks) -> None:
        held, out = chunks[mine], chunks[result]
        for blocks in incoming:
            combine(held, blocks[k], out)
            held = out
        if divide is not None:
            divide(out)

    return [*lengths, lengths[me]], fill, use


def _all_gather(views: Views) -> Exchange:
    me, lengths = views.rank, views.call.lengths
    exchanges, own = views.arena.exchanges, 1 + me
    mine = views.bytes_of(exchanges[me], 0, lengths[me])
    theirs = [(1 + p, views.bytes_of(exchanges[p], 0, lengths[p])) for p in views.peers]

    def fill(k: int, chunks: Chunks) -> None:
        mine[k][:] = chunks[0]

    def use(k: int, chunks: Chunks) -> None:
        chunks[own][:] = chunks[0]
        for out, blocks in theirs:
            chunks[out][:] = blocks[k]

    return [lengths[me], *lengths], fill, use


def _nothing(_k: int, _chunks: Chunks) -> None:
    """Move no value, as in a barrier."""


OPERATIONS: dict[str, Callable[[Views], Exchange]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "barrier": lambda _views: ([], _nothing, _nothing),
}
