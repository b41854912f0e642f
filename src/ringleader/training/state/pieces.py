"""Cuts the tensors of a state into pieces that travel and are hashed.

A piece is a range of one large tensor, or several small tensors in one message. All
members compute the same pieces from the same manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringleader.training.state.manifest import Entry

PIECE_BYTES = 4 << 20


class Span(NamedTuple):
    """A range of the bytes of one tensor."""

    name: str
    begin: int
    num_bytes: int


Piece = tuple[Span, ...]


def size_of(piece: Piece) -> int:
    """Return the bytes of a piece."""
    return sum(span.num_bytes for span in piece)


def cut(entries: Sequence[Entry], piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Return the pieces of the tensors, in order; empty tensors are in none."""
    pieces: list[Piece] = []
    small: list[Span] = []
    size = 0
    for span in _spans(entries, piece_bytes):
        if small and size + span.num_bytes > piece_bytes:
            pieces.append(tuple(small))
            small, size = [], 0
        small.append(span)
        size += span.num_bytes
    if small:
        pieces.append(tuple(small))
    return pieces


def _spans(entries: Sequence[Entry], piece_bytes: int) -> Iterator[Span]:
    for entry in entries:
        size = entry.num_bytes
        for begin in range(0, size, piece_bytes):
            yield Span(entry.name, begin, min(piece_bytes, size - begin))


def share_out(sizes: Iterable[int], num_sources: int) -> list[int]:
    """Return for each size the source that sends it; all send about as much."""
    loads = [0] * num_sources
    chosen: list[int] = []
    for size in sizes:
        source = loads.index(min(loads))
        loads[source] += size
        chosen.append(source)
    return chosen


class ByteViews:
    """The bytes of live tensors.

    A contiguous tensor is read and written in place, on whichever device it is. Any
    other is copied when its first byte is needed; ``write_back`` copies changes to it.
    So is a tensor that is staged: it stays as it is until then. ``copies`` are those of
    tensors that were staged before, and not written back.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], copies: dict[str, Tensor] | None = None
    ) -> None:
        self._tensors = tensors
        self._copies = {} if copies is None else copies

    def read(self, piece: Piece) -> Tensor:
        """Return the bytes of a piece in host memory, as uint8.

        It is a view, not a copy, if ``is_in_place``.
        """
        parts = [self._bytes_of(span).cpu() for span in piece]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def stage(self, piece: Piece) -> None:
        """Give the tensors of a piece, all of which will be written, new memory."""
        for name in {span.name for span in piece} - self._copies.keys():
            num_bytes = self._tensors[name].nbytes
            self._copies[name] = torch.empty(num_bytes, dtype=torch.uint8)

    def write(self, piece: Piece, data: Tensor) -> None:
        """Write the bytes of a piece into the tensors."""
        begin = 0
        for span in piece:
            self._bytes_of(span).copy_(data[begin : begin + span.num_bytes])
            begin += span.num_bytes

    def is_in_place(self, piece: Piece) -> bool:
        """Whether ``read`` gives the memory into which ``write`` would write."""
        return len(piece) == 1 and self._flat(piece[0].name).is_cpu

    def write_back(self) -> None:
        """Copy what was written to tensors that are staged or not contiguous."""
        while self._copies:
            name, copy = self._copies.popitem()
            live = self._tensors[name].detach()
            live.copy_(copy.view(live.dtype).reshape(live.shape))

    def forget(self, name: str) -> None:
        """Free the copy of a tensor that is not contiguous."""
        self._copies.pop(name, None)

    def _bytes_of(self, span: Span) -> Tensor:
        flat = self._flat(span.name)
        return flat[span.begin : span.begin + span.num_bytes]

    def _flat(self, name: str) -> Tensor:
        live = self._tensors[name].detach()
        if name not in self._copies:
            if live.is_contiguous():
                return live.reshape(-1).view(torch.uint8)
            flat = live.contiguous().reshape(-1)
            self._copies[name] = flat.view(torch.uint8)
        return self._copies[name]
