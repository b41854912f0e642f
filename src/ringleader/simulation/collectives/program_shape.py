"""ProgramShape describes a program independently of rank and chunk numbers.

Peers become distances to the right, and chunk numbers become the indices of the earlier
moves on the same chunk that a move must wait for, by the engine's rule: a send follows
the last write, a write follows the last write and every send since. Ranks whose
programs have the same shape do the same at the same time if the network is uniform.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringleader.collectives.schedule import Kind, Program


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """A program without ranks and chunks; each field has one entry per move."""

    kinds: tuple[Kind, ...]
    distances: tuple[int, ...]
    """Distance from sender to receiver to the right, modulo the group size."""
    befores: tuple[tuple[int, ...], ...]
    """Indices of the moves on the same chunk that this one must wait for."""


def shape_of(moves: Program, rank: int, size: int) -> ProgramShape:
    """Return the shape of the program of ``rank``."""
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
            befores.append(sent or written)  # the sends already follow the last write
            writes[chunk], sends[chunk] = (index,), ()
    return ProgramShape(tuple(m.kind for m in moves), tuple(distances), tuple(befores))


def common_shape(
    programs: Sequence[Program],
    *,
    ranks: Iterable[int] | None = None,
    size: int | None = None,
) -> ProgramShape | None:
    """Return the shape that all ``programs`` share, or None if they differ.

    ``ranks`` names their ranks if they are a sample of a group of ``size``.
    """
    size = len(programs) if size is None else size
    first: ProgramShape | None = None
    for rank, moves in zip(ranks or range(size), programs, strict=True):
        shape = shape_of(moves, rank, size)
        if first is None:
            first = shape
        elif shape != first:
            return None
    return first
