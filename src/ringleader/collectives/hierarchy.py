"""Hierarchy: reduce inside each host, all-reduce across hosts, broadcast inside.

Each host has one speaker, its first rank, so every byte leaves a host once. The local
and the global part may use different algorithms; contributions are counted per rank,
so hosts of unequal size weigh what they should.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringleader.collectives.schedule import Move, Program

Rooted = Callable[[int, int, int], Program]
"""(rank, size, root) -> program on one chunk."""


def _translate(program: Program, ranks: Sequence[int], chunk: int) -> Program:
    """The same program in the numbering of the whole group, on one given chunk."""
    return [Move(m.kind, ranks[m.peer], chunk) for m in program]


def all_reduce(
    rank: int,
    hosts: Sequence[Sequence[int]],
    *,
    local_reduce: Rooted,
    across: Callable[[int, int], Program],
    local_broadcast: Rooted,
) -> Program:
    """``hosts`` lists the ranks of each host; ``across`` works on its own chunks."""
    host = next(h for h in hosts if rank in h)
    me = host.index(rank)
    speakers = [h[0] for h in hosts]
    across_me = across(hosts.index(host), len(hosts))
    num_chunks = 1 + max((m.chunk for m in across(0, len(hosts))), default=0)
    moves: Program = []
    for chunk in range(num_chunks):
        moves += _translate(local_reduce(me, len(host), 0), host, chunk)
    if me == 0:
        moves += (Move(m.kind, speakers[m.peer], m.chunk) for m in across_me)
    for chunk in range(num_chunks):
        moves += _translate(local_broadcast(me, len(host), 0), host, chunk)
    return moves
