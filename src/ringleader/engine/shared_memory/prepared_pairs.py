"""Prepared exchanges of two ranks: those of prepared_exchanges.py, without loops.

Two ranks on a host are common, and in a call of a kilobyte every line of Python counts:
loops over one peer and the functions around them took 1 us of 20 (2026-11-18).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringleader.engine.arrays_by_address import Addresses, Chunks
from ringleader.engine.engine import HeaderMismatch, NextHeader, Prepared
from ringleader.engine.reductions import Combine, combine_and_divide
from ringleader.engine.shared_memory.prepared_views import Views
from ringleader.transport.shm_segment import Signal

Use = Callable[[int, Chunks], object]
"""Makes the result of the slots of this number."""
Pair = tuple[list[int], int, Sequence[memoryview], Use]
"""(lengths of the chunks, the chunk for the peer, where it goes in each own slot, how
both ranks' slots are used)."""


def run_function(views: Views, next_header: NextHeader) -> Prepared:
    """The function that does one exchange; everything is a local variable of it."""
    arena, peer = views.arena, views.peers[0]
    lengths, sent, mine, use = OPERATIONS[views.call.operation](views)
    chunks_at = views.chunks(lengths)
    headers = [slot.header for slot in arena.exchanges[views.rank]]
    seen = [slot.header for slot in arena.exchanges[peer]]
    post, take = arena.post[Signal.POST][0], arena.take[Signal.POST][peer]
    next_turn, wait = arena.next_turn, arena.wait

    def run(addresses: Addresses) -> None:
        header = next_header()
        arena.complete = 0
        k = next_turn()
        chunks = chunks_at[addresses]
        mine[k][:] = chunks[sent]
        headers[k][:] = header
        post()
        if not take(False):
            wait(take, peer)
        if (other := seen[k].tobytes()) != header:
            raise HeaderMismatch(peer, other, header)
        use(k, chunks)

    return run


def _all_reduce(views: Views) -> Pair:
    count, combine, exchanges = views.call.count, _combine(views), views.arena.exchanges
    first, second = (views.of(slots, 0, count) for slots in exchanges)
    mine = views.bytes_of(exchanges[views.rank], 0, count)

    def use(k: int, chunks: Chunks) -> None:
        combine(first[k], second[k], chunks[1])  # the array follows the bytes

    return [count], 0, mine, use


def _reduce_scatter(views: Views) -> Pair:
    me, peer, lengths = views.rank, views.peers[0], views.call.lengths
    combine, exchanges, room = _combine(views), views.arena.exchanges, max(lengths)
    mine = views.bytes_of(exchanges[me], peer * room, lengths[peer])
    theirs = views.of(exchanges[peer], me * room, lengths[me])
    held, result = 3 + me, 3 + 2  # the arrays follow the bytes of three chunks

    def use(k: int, chunks: Chunks) -> None:
        combine(chunks[held], theirs[k], chunks[result])

    return [*lengths, lengths[me]], peer, mine, use


def _all_gather(views: Views) -> Pair:
    me, peer, lengths = views.rank, views.peers[0], views.call.lengths
    exchanges, own, other = views.arena.exchanges, 1 + me, 1 + peer
    mine = views.bytes_of(exchanges[me], 0, lengths[me])
    theirs = views.bytes_of(exchanges[peer], 0, lengths[peer])

    def use(k: int, chunks: Chunks) -> None:
        chunks[own][:] = chunks[0]
        chunks[other][:] = theirs[k]

    return [lengths[me], *lengths], 0, mine, use


def _combine(views: Views) -> Combine:
    return combine_and_divide(views.call.combine(), views.call.divide(views.size))


OPERATIONS: dict[str, Callable[[Views], Pair]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
}
