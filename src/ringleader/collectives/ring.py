"""Ring algorithms: each rank sends to its right and receives from its left only.

Steps and bytes per rank for S bytes and n ranks: all_reduce 2(n-1) steps, 2(n-1)/n S;
reduce_scatter and all_gather half of that; broadcast and reduce are pipelines along
the ring, n-1 hops and S bytes.
"""

from __future__ import annotations

from ringleader.collectives.schedule import Program, copy, reduce, send


def reduce_scatter(rank: int, size: int) -> Program:
    """Reduce n chunks so that chunk i ends complete on rank i."""
    right, left = (rank + 1) % size, (rank - 1) % size
    moves: Program = []
    for i in range(1, size):
        moves += send(right, (rank - i) % size), reduce(left, (rank - i - 1) % size)
    return moves


def all_gather(rank: int, size: int) -> Program:
    """Send n chunks around the ring: chunk i starts on rank i and ends on all."""
    right, left = (rank + 1) % size, (rank - 1) % size
    moves: Program = []
    for i in range(size - 1):
        moves += send(right, (rank - i) % size), copy(left, (rank - i - 1) % size)
    return moves


def all_reduce(rank: int, size: int) -> Program:
    """Reduce n chunks on the first way round, gather them on the second."""
    return reduce_scatter(rank, size) + all_gather(rank, size)


def broadcast(rank: int, size: int, root: int) -> Program:
    """Forward one chunk from the root along the ring."""
    place = (rank - root) % size
    moves: Program = []
    if place > 0:
        moves.append(copy((rank - 1) % size, 0))
    if place < size - 1:
        moves.append(send((rank + 1) % size, 0))
    return moves


def reduce_to(rank: int, size: int, root: int) -> Program:
    """Add every rank to one chunk on its way along the ring to the root."""
    place = (rank - root) % size
    moves: Program = []
    if place < size - 1:
        moves.append(reduce((rank + 1) % size, 0))
    if place > 0:
        moves.append(send((rank - 1) % size, 0))
    return moves
