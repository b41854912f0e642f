"""All_reduce of tensors that every rank has mapped: one result, for all of them.

Rank r adds up part r of every piece and writes the sum into the result. No two ranks
write the same bytes, so they meet only before the first addition and after the last.
Every value is read once, and every sum is written once. The pieces, their parts and the
order of additions are those of a relay: the result has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.collectives.schedule import split
from ringleader.engine.call import Mapped
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.relay_call import RelayCall


def all_reduce(
    arena: Arena, header: bytes, mapped: Mapped, how: RelayCall, part_bytes: int
) -> None:
    """Reduce the tensors into the result.

    All ranks have told each other that they have filled theirs, and read the last one.
    """
    size, me = arena.size, arena.rank
    ordered = [mapped.tensors[(me + step) % size] for step in range(size)]
    own, *others = (how.values(each) for each in ordered)
    result = how.values(mapped.result)
    part = part_bytes // mapped.result.itemsize
    for start, end in _own_parts(len(mapped.result), part, size, me):
        arena.check()
        total, held = result[start:end], own[start:end]
        for theirs in others:
            how.combine(theirs[start:end], held, total)
            held = total
        if how.divide is not None:
            how.divide(total)
    arena.rounds(header, 1, lambda _c, _content: None, lambda _c, _blocks: None)
    arena.complete = len(mapped.result)


def _own_parts(
    count: int, part: int, size: int, rank: int
) -> Iterator[tuple[int, int]]:
    """The range of elements of this rank's part of each piece."""
    for start in range(0, count, part * size):
        low, high = split(min(part * size, count - start), size)[rank]
        yield start + low, start + high
