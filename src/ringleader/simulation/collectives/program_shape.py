"""The shape of a program: what is left of it when ranks and chunk numbers are gone.

Peers become distances to the right, and chunk numbers become "the earlier moves on the
same chunk that this one follows", by the engine's rule: a send follows the last write,
a write follows the last write and every send since. Ranks whose programs have the same
shape do the same thing at the same time wherever the network is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringleader.collectives.schedule import Kind, Program


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """One entry per move in each field."""

    kinds: tuple[Kind, ...]
    distances: tuple[int, ...]
    """How far a message goes to the right, modulo the size, sent or received."""
    befores: tuple[tuple[int, ...], ...]
    """Indices of the moves on the same chunk that must be ahead of this one."""


def shape_of(moves: Program, rank: int, size: int) -> ProgramShape:
    """The shape of the program of ``rank``."""
    distances: list[int] = []
    befores: list[tuple[int, ...]] = []
    writes: dict[int, tuple[int, ...]] = {}
    sends: dict[int, tuple[int, ...]] = {}
    for index, (kind, peer, chunk) in enumerate(moves):
        written, sent = writes.get(chunk, ()), sends.get(chunk, ())
        if kind is Kind.SEND:
            distances.append((peer - rank) % size)
            befores.append(written)
            sends[chunk] = (*sent, index)
        else:
            distances.append((rank - peer) % size)
            befores.append(sent or written)  # a send is never ahead of its write
            writes[chunk], sends[chunk] = (index,), ()
    return ProgramShape(tuple(m.kind for m in moves), tuple(distances), tuple(befores))


def common_shape(
    programs: Sequence[Program],
    *,
    ranks: Iterable[int] | None = None,
    size: int | None = None,
) -> ProgramShape | None:
    """The one shape of all ``programs``, or None; ``ranks`` when they are a sample."""
    size = len(programs) if size is None else size
    first: ProgramShape | None = None
    for rank, moves in zip(ranks or range(size), programs, strict=True):
        shape = shape_of(moves, rank, size)
        if first is None:
            first = shape
        elif shape != first:
            return None
    return first
