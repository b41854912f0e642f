"""Direct algorithms: every rank communicates with every other, over a full mesh.

``exchange_all_reduce`` takes one step of (n-1) S bytes: the fastest for tiny tensors.
``all_reduce`` takes two steps of (n-1)/n S bytes each: as many bytes as a ring with the
latency of two steps, if the network can carry all pairs at once.
"""

from __future__ import annotations

from ringleader.collectives.schedule import Program, copy, reduce, send


def exchange_all_reduce(rank: int, size: int) -> Program:
    """Send the whole tensor to every rank."""
    moves: Program = [send((rank + i) % size, 0) for i in range(1, size)]
    moves += (reduce(p, 0) for p in range(size) if p != rank)
    return moves


def reduce_scatter(rank: int, size: int) -> Program:
    """Send chunk i directly to rank i, which adds in rank order."""
    moves: Program = []
    for i in range(1, size):
        moves.append(send((rank + i) % size, (rank + i) % size))
    moves += (reduce(p, rank) for p in range(size) if p != rank)
    return moves


def all_gather(rank: int, size: int) -> Program:
    """Send our chunk to every other rank."""
    moves: Program = []
    for i in range(1, size):
        moves.append(send((rank + i) % size, rank))
        moves.append(copy((rank - i) % size, (rank - i) % size))
    return moves


def all_reduce(rank: int, size: int) -> Program:
    """Reduce-scatter, then all-gather, of n chunks."""
    return reduce_scatter(rank, size) + all_gather(rank, size)


def all_to_all(rank: int, size: int) -> Program:
    """Send chunk i*n + j from rank i to rank j; there are n*n chunks."""
    moves: Program = []
    for i in range(1, size):
        to, source = (rank + i) % size, (rank - i) % size
        moves += send(to, rank * size + to), copy(source, source * size + rank)
    return moves
