"""Direct: every rank talks to every other, over a full mesh.

``exchange_all_reduce`` is one step of (n-1) S bytes: the fastest for tiny tensors.
``all_reduce`` is two steps of (n-1)/n S bytes each: as many bytes as a ring with only
two hops of latency, where the network can carry all pairs at once.
"""

from __future__ import annotations

from ringleader.collectives.schedule import Program, copy, reduce, send


def exchange_all_reduce(rank: int, size: int) -> Program:
    """Everybody sends the whole tensor to everybody."""
    moves: Program = [send((rank + i) % size, 0) for i in range(1, size)]
    moves += (reduce(p, 0) for p in range(size) if p != rank)
    return moves


def reduce_scatter(rank: int, size: int) -> Program:
    """Chunk i goes straight to rank i, which adds in rank order."""
    moves: Program = []
    for i in range(1, size):
        moves.append(send((rank + i) % size, (rank + i) % size))
    moves += (reduce(p, rank) for p in range(size) if p != rank)
    return moves


def all_gather(rank: int, size: int) -> Program:
    """Every rank sends its chunk to every other."""
    moves: Program = []
    for i in range(1, size):
        moves.append(send((rank + i) % size, rank))
        moves.append(copy((rank - i) % size, (rank - i) % size))
    return moves


def all_reduce(rank: int, size: int) -> Program:
    """n chunks: reduce-scatter, then all-gather."""
    return reduce_scatter(rank, size) + all_gather(rank, size)


def all_to_all(rank: int, size: int) -> Program:
    """n*n chunks; chunk i*n + j goes from rank i to rank j."""
    moves: Program = []
    for i in range(1, size):
        to, source = (rank + i) % size, (rank - i) % size
        moves += send(to, rank * size + to), copy(source, source * size + rank)
    return moves
