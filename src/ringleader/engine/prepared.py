"""All_reduces prepared once per dtype, length and reduction, run in no time.

A collective of a few bytes costs what its Python costs, and Python that has not run
since 4 MiB went through the cache costs three times as much. Here every view and
function is looked up beforehand; a small run is a copy, the signals or system calls,
and the additions in rank order. Nothing is different on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringleader.engine import shared_memory
from ringleader.engine.arena import Arena, Finish
from ringleader.engine.arrays import Array, array_at
from ringleader.engine.exchange import ExchangeEngine
from ringleader.engine.reductions import Combine
from ringleader.transport.shm_segment import Signal

SMALL_BYTES = 64 << 10
"""Over links, beyond this the general path costs little more, and a copy much."""

MAX_PLACES = 64
"""Addresses kept per prepared call; a view costs a microsecond to make again."""

Stamp = Callable[[], bytes]
"""Begins the next operation and returns its header."""
Prepared = Callable[[int], None]
"""All-reduces the tensor at an address, in place."""


@dataclass(slots=True, eq=False, kw_only=True)
class Shape:
    """What a prepared call does, wherever its tensor lies."""

    count: int
    dtype: np.dtype[Any]
    combine: Combine
    stamp: Stamp
    finish: Finish | None
    """Turns sums into results."""


class Places(dict[int, Array]):
    """Tensors like that of one call, by their address: programs use few of them."""

    def __init__(self, call: Shape) -> None:
        super().__init__()
        self._call = call

    def __missing__(self, address: int) -> Array:
        if len(self) >= MAX_PLACES:
            self.clear()
        array = self[address] = array_at(address, self._call.count, self._call.dtype)
        return array


def in_memory(arena: Arena, call: Shape) -> Prepared:
    """Through the exchange slots of shared memory."""
    num_bytes = call.count * call.dtype.itemsize
    stamp, combine, finish, places = call.stamp, call.combine, call.finish, Places(call)
    turns = range(arena.geometry.num_exchanges)
    slots = [[s[k] for s in arena.exchanges] for k in turns]
    my_header = [turn[arena.rank].header for turn in slots]
    blocks = [[s.content[:num_bytes].view(call.dtype) for s in turn] for turn in slots]
    mine = [turn[arena.rank] for turn in blocks]
    posts = arena.post[Signal.POST]
    theirs = [
        (p, arena.take[Signal.POST][p], [turn[p].header for turn in slots])
        for p in arena.peers
    ]
    wait, mismatch, next_turn = arena.wait, arena.mismatch, arena.next_turn

    def run(address: int) -> None:
        header = stamp()
        k = next_turn()
        tensor = places[address]
        mine[k][...] = tensor
        my_header[k][:] = header
        for post in posts:
            post()
        for peer, take, seen in theirs:
            if not take(False):
                wait(take, peer)
            if (other := seen[k].tobytes()) != header:
                mismatch(peer, other)
        _add(blocks[k], tensor, combine)
        if finish is not None:
            finish(tensor)

    return run


def in_place(arena: Arena, call: Shape) -> Prepared:
    """Through the slots of shared memory, straight to the tensor: for larger ones."""
    places = Places(call)

    def run(address: int) -> None:
        header = call.stamp()
        array = places[address]
        arena.complete = 0
        shared_memory.all_reduce(arena, header, array, array, call.combine, call.finish)

    return run


def over_links(exchange: ExchangeEngine, call: Shape) -> Prepared:
    """Through one message to and from every peer."""
    num_bytes = call.count * call.dtype.itemsize
    stamp, combine, finish, places = call.stamp, call.combine, call.finish, Places(call)
    size = exchange.prepare(num_bytes)
    blocks = [p.view(call.dtype) for p in size.payload]
    mine = blocks[exchange.rank]
    swap = exchange.swap

    def run(address: int) -> None:
        header = stamp()
        tensor = places[address]
        mine[...] = tensor
        swap(size, header)
        _add(blocks, tensor, combine)
        if finish is not None:
            finish(tensor)

    return run


def _add(blocks: list[Array], result: Array, combine: Combine) -> None:
    """Add ``blocks`` in rank order into ``result``."""
    combine(blocks[0], blocks[1], result)
    for block in blocks[2:]:
        combine(result, block, result)
