"""Small calls over links whose program forwards nothing, with all views made.

Such a program sends what this rank has and receives what it needs: a broadcast by a
star, an all_to_all, and nearly everything between two ranks. What the stream engine
sends to a peer in it is one message, which is therefore built, sent and received whole.
The bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ringleader.collectives.schedule import Kind, Move, Program, split
from ringleader.engine.arrays import Array, bytes_of, storage_dtype
from ringleader.engine.arrays_by_address import Addresses, BytesByAddress, Chunks
from ringleader.engine.call import Call
from ringleader.engine.engine import Forms, NextHeader
from ringleader.engine.over_links.message_swap import (
    PIECE_BYTES,
    Incoming,
    MessageSwap,
    Outgoing,
    swap_forms,
)
from ringleader.engine.reductions import Combine
from ringleader.transport.link import Link
from ringleader.wire.header import HEADER_BYTES

Use = Callable[[Chunks], object]
"""Uses what has been received."""


@dataclass(slots=True)
class Layout:
    """Where the chunks of a call are in its tensors."""

    lengths: list[int]
    """Elements of all parts, in the order of the tensors: inputs, then outputs."""
    inputs: dict[int, int]
    """Chunk -> part with the values of this rank."""
    outputs: dict[int, int]
    """Chunk -> part for the result."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Chunk -> elements."""


def layout_of(call: Call, rank: int, size: int, num_chunks: int) -> Layout:
    """The layout of ``call`` on this rank, whose program moves ``num_chunks``."""
    me, is_root, ranks = rank, call.root == rank, range(size)
    if call.whole:
        parts = [b - a for a, b in split(call.count, num_chunks)]
        every = {c: c for c in range(num_chunks)}
        gives = is_root or call.operation == "reduce"
        gets = is_root == (call.operation == "reduce")
        sizes = dict(enumerate(parts))
        return Layout(parts, every if gives else {}, every if gets else {}, sizes)
    if call.operation == "all_to_all":
        sent, received = ([call.pairs[p][i] for p in ranks] for i in (0, 1))
        inputs = {me * size + p: p for p in ranks}
        outputs = {p * size + me: size + p for p in ranks}
        parts = [*sent, *received]
        sizes = {c: parts[i] for c, i in (inputs | outputs).items()}
        return Layout(parts, inputs, outputs, sizes)
    sizes = dict(enumerate(call.lengths))
    every, mine = {c: c for c in ranks}, sizes[me]
    after_mine = {c: 1 + c for c in ranks}
    match call.operation:
        case "all_gather":
            return Layout([mine, *call.lengths], {me: 0}, after_mine, sizes)
        case "gather" if is_root:
            return Layout([mine, *call.lengths], {me: 0}, after_mine, sizes)
        case "gather":
            return Layout([mine], {me: 0}, {}, sizes)
        case "scatter" if not is_root:
            return Layout([mine], {}, {me: 0}, sizes)
        case _:  # reduce_scatter, and scatter of the root
            return Layout([*call.lengths, mine], every, {me: size}, sizes)


def prepare(
    call: Call,
    program: Program,
    rank: int,
    links: Mapping[int, Link],
    swap: MessageSwap,
    next_header: NextHeader,
) -> Forms | None:
    """A function that does calls like ``call``; None if they need the general path."""
    if call.operation == "all_reduce" or not program or forwards(program):
        return None
    size = len(links) + 1
    layout = layout_of(call, rank, size, 1 + max(move.chunk for move in program))
    if _longest(program, layout) * storage_dtype(call.dtype).itemsize > PIECE_BYTES:
        return None
    messages = _Messages(call, program, layout, links, swap)
    chunks_at = BytesByAddress(call.tensors, layout.lengths, messages.dtype)
    outs, ins, fills, uses = messages.outs, messages.ins, messages.fills, messages.uses
    heads = [
        (head, link.peer) for head, (link, _) in zip(messages.heads, outs, strict=True)
    ]
    peers = [one.link.peer for one in ins]

    def fill(addresses: Addresses) -> tuple[Chunks, list[bytes]]:
        by_peer = call.headers(next_header(), rank, size)
        chunks = chunks_at[addresses]
        for head, peer in heads:
            head[:] = by_peer[peer][0]
        for view, part in fills:
            view[:] = chunks[part]
        return chunks, [by_peer[peer][1] for peer in peers]

    def use_all(chunks: Chunks) -> None:
        for use in uses:
            use(chunks)

    return swap_forms(swap, (outs, ins), fill, use_all)


def _longest(program: Program, layout: Layout) -> int:
    """The elements of the longest message."""
    totals: dict[tuple[int, bool], int] = {}
    for kind, peer, chunk in program:
        key = (peer, kind is Kind.SEND)
        totals[key] = totals.get(key, 0) + layout.sizes[chunk]
    return max(totals.values())


def forwards(program: Program) -> bool:
    """Return whether a chunk is sent after it was received."""
    received: set[int] = set()
    if len(set(program)) != len(program):
        return True  # a chunk goes to and fro
    for move in program:
        if move.kind is not Kind.SEND:
            received.add(move.chunk)
        elif move.chunk in received:
            return True
    return False


class _Messages:
    """The buffers of the messages of a program, and what fills and uses them."""

    def __init__(
        self,
        call: Call,
        program: Program,
        layout: Layout,
        links: Mapping[int, Link],
        swap: MessageSwap,
    ) -> None:
        self.dtype: np.dtype[Any] = storage_dtype(call.dtype)
        self._layout = layout
        self._swap = swap
        self.outs: list[Outgoing] = []
        self.heads: list[memoryview] = []
        """Where the headers of ``outs`` are written."""
        self.ins: list[Incoming] = []
        self.fills: list[tuple[memoryview, int]] = []
        """(place in a message, part that is copied there)."""
        self.uses: list[Use] = []
        """In the order of the program, as the stream engine adds them."""
        blocks: dict[Move, Any] = {}
        for peer, link in sorted(links.items()):
            sends = [m for m in program if m.peer == peer and m.kind is Kind.SEND]
            recvs = [m for m in program if m.peer == peer and m.kind is not Kind.SEND]
            if sends:
                self._add_out(link, sends)
            if recvs:
                self._add_in(link, recvs, blocks)
        self._add_uses(call, program, blocks, len(links) + 1)

    def _places(self, moves: Sequence[Move]) -> list[tuple[int, int]]:
        """(start, end) of the chunks of ``moves`` in a message."""
        places, end = [], HEADER_BYTES
        for move in moves:
            start, end = end, end + self._layout.sizes[move.chunk] * self.dtype.itemsize
            places.append((start, end))
        return places

    def _add_out(self, link: Link, moves: Sequence[Move]) -> None:
        places = self._places(moves)
        buffer = self._swap.buffer(link.peer, is_incoming=False)
        message = bytes_of(buffer)[: places[-1][1]]
        self.outs.append((link, message))
        self.heads.append(message[:HEADER_BYTES])
        for move, (start, end) in zip(moves, places, strict=True):
            part = self._layout.inputs[move.chunk]
            self.fills.append((message[start:end], part))

    def _add_in(
        self, link: Link, moves: Sequence[Move], blocks: dict[Move, Any]
    ) -> None:
        places = self._places(moves)
        buffer = self._swap.buffer(link.peer, is_incoming=True)
        self.ins.append(Incoming(link, bytes_of(buffer)[: places[-1][1]]))
        for move, (start, end) in zip(moves, places, strict=True):
            blocks[move] = buffer[start:end]

    def _add_uses(
        self, call: Call, program: Program, blocks: dict[Move, Any], size: int
    ) -> None:
        layout, num_parts = self._layout, len(self._layout.lengths)
        held = dict(layout.inputs)
        for move in program:
            if move.kind is Kind.SEND or move.chunk not in layout.outputs:
                continue
            out = layout.outputs[move.chunk]
            if move.kind is Kind.COPY:
                self.uses.append(partial(_copy, out, bytes_of(blocks[move])))
            else:
                block = blocks[move].view(self.dtype)
                parts = num_parts + held[move.chunk], num_parts + out
                self.uses.append(partial(_add, call.combine(), block, *parts))
            held[move.chunk] = out
        received = {move.chunk for move in blocks}
        for chunk, part in layout.inputs.items():
            if chunk in layout.outputs and chunk not in received:
                self.uses.append(partial(_move, part, layout.outputs[chunk]))
        divide = call.divide(size)
        if divide is not None:
            for part in layout.outputs.values():
                self.uses.append(
                    lambda chunks, at=num_parts + part: divide(chunks[at])  # type: ignore[misc]
                )


def _copy(part: int, block: memoryview, chunks: Chunks) -> None:
    chunks[part][:] = block


def _move(source: int, part: int, chunks: Chunks) -> None:
    chunks[part][:] = chunks[source]


def _add(combine: Combine, block: Array, held: int, out: int, chunks: Chunks) -> None:
    combine(chunks[held], block, chunks[out])
