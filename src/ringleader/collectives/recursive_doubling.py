"""Recursive doubling and halving: ceil(log2 n) steps, for any number of ranks.

``all_reduce`` exchanges the whole tensor log2 n times: low latency.
``halving_all_reduce`` is bandwidth-optimal: a reduce-scatter that halves its messages
in every step, then an all-gather that doubles them, 2(n-1)/n S bytes per rank. Both
use Bruck's algorithm, mirrored for the reduce-scatter, which needs no power of two.
"""

from __future__ import annotations

from ringleader.collectives.schedule import Program, copy, reduce, send


def _distances(size: int) -> list[int]:
    """Return the powers of two below ``size``."""
    return [1 << i for i in range((size - 1).bit_length())]


def all_reduce(rank: int, size: int) -> Program:
    """Reduce one chunk. Ranks beyond the largest power of two send theirs to a twin."""
    full = 1 << (size.bit_length() - 1)
    if rank >= full:
        return [send(rank - full, 0), copy(rank - full, 0)]
    twin = rank + full
    moves: Program = [reduce(twin, 0)] if twin < size else []
    for distance in _distances(full):
        moves += send(rank ^ distance, 0), reduce(rank ^ distance, 0)
    if twin < size:
        moves.append(send(twin, 0))
    return moves


def all_gather(rank: int, size: int) -> Program:
    """Gather n chunks; after distance d, rank r holds chunks r to r + 2d - 1."""
    moves: Program = []
    for distance in _distances(size):
        run = range(min(distance, size - distance))
        to, source = (rank - distance) % size, (rank + distance) % size
        moves += (send(to, (rank + i) % size) for i in run)
        moves += (copy(source, (rank + distance + i) % size) for i in run)
    return moves


def reduce_scatter(rank: int, size: int) -> Program:
    """Mirror ``all_gather``: reverse the steps, swap sends and receives."""
    moves: Program = []
    for distance in reversed(_distances(size)):
        run = range(min(distance, size - distance))
        to, source = (rank + distance) % size, (rank - distance) % size
        moves += (send(to, (rank + distance + i) % size) for i in run)
        moves += (reduce(source, (rank + i) % size) for i in run)
    return moves


def halving_all_reduce(rank: int, size: int) -> Program:
    """Reduce-scatter by halving, then all-gather by doubling."""
    return reduce_scatter(rank, size) + all_gather(rank, size)


def broadcast(rank: int, size: int, root: int) -> Program:
    """Broadcast by a binomial tree: before distance d, d ranks hold the chunk."""
    place = (rank - root) % size
    moves: Program = []
    for distance in _distances(size):
        if place < distance and place + distance < size:
            moves.append(send((rank + distance) % size, 0))
        elif distance <= place < 2 * distance:
            moves.append(copy((rank - distance) % size, 0))
    return moves


def reduce_to(rank: int, size: int, root: int) -> Program:
    """Mirror ``broadcast``: reduce along the same binomial tree."""
    place = (rank - root) % size
    moves: Program = []
    for distance in reversed(_distances(size)):
        if place < distance and place + distance < size:
            moves.append(reduce((rank + distance) % size, 0))
        elif distance <= place < 2 * distance:
            moves.append(send((rank - distance) % size, 0))
    return moves
