"""Ring: each rank talks to its right and left only; every byte crosses each link once.

Steps and bytes per rank for S bytes and n ranks: all_reduce 2(n-1) steps, 2(n-1)/n S;
reduce_scatter and all_gather half of that; broadcast and reduce are pipelines along
the ring, n-1 hops and S bytes.
"""

from __future__ import annotations

from ringleader.collectives.schedule import Program, copy, reduce, send


def reduce_scatter(rank: int, size: int) -> Program:
    """n chunks; chunk i ends complete on rank i."""
    right, left = (rank + 1) % size, (rank - 1) % size
    moves: Program = []
    for i in range(1, size):
        moves += send(right, (rank - i) % size), reduce(left, (rank - i - 1) % size)
    return moves


def all_gather(rank: int, size: int) -> Program:
    """n chunks; chunk i starts on rank i and ends everywhere."""
    right, left = (rank + 1) % size, (rank - 1) % size
    moves: Program = []
    for i in range(size - 1):
        moves += send(right, (rank - i) % size), copy(left, (rank - i - 1) % size)
    return moves


def all_reduce(rank: int, size: int) -> Program:
    """n chunks, reduced on the way round once, gathered on the second."""
    return reduce_scatter(rank, size) + all_gather(rank, size)


def broadcast(rank: int, size: int, root: int) -> Program:
    """One chunk handed on from the root to the rank left of it."""
    place = (rank - root) % size
    moves: Program = []
    if place > 0:
        moves.append(copy((rank - 1) % size, 0))
    if place < size - 1:
        moves.append(send((rank + 1) % size, 0))
    return moves


def reduce_to(rank: int, size: int, root: int) -> Program:
    """One chunk that collects every rank on its way to the root."""
    place = (rank - root) % size
    moves: Program = []
    if place < size - 1:
        moves.append(reduce((rank + 1) % size, 0))
    if place > 0:
        moves.append(send((rank - 1) % size, 0))
    return moves
