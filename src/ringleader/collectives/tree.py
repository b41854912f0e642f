"""Tree algorithms on a k-ary tree, numbered like a heap and rotated to any root.

The depth is d = ceil(log_k n). An all_reduce takes 2d steps, and an inner rank moves
(k+1) S bytes each way: trees have low latency, not high bandwidth.
"""

from __future__ import annotations

from ringleader.collectives.schedule import Program, copy, reduce, send


def parent_of(rank: int, size: int, root: int, arity: int) -> int | None:
    """Return the parent of ``rank``, or None for the root."""
    place = (rank - root) % size
    return None if place == 0 else ((place - 1) // arity + root) % size


def children_of(rank: int, size: int, root: int, arity: int) -> list[int]:
    """Return the children of ``rank``, in heap order."""
    place = (rank - root) % size
    first = place * arity + 1
    return [(p + root) % size for p in range(first, min(first + arity, size))]


def _subtree(rank: int, size: int, root: int, arity: int) -> list[int]:
    below = [rank]
    for child in children_of(rank, size, root, arity):
        below += _subtree(child, size, root, arity)
    return below


def reduce_to(
    rank: int, size: int, root: int, arity: int = 2, num_chunks: int = 1
) -> Program:
    """Add every chunk from the children and send it to the parent."""
    parent = parent_of(rank, size, root, arity)
    children = children_of(rank, size, root, arity)
    moves: Program = []
    for chunk in range(num_chunks):
        moves += (reduce(child, chunk) for child in children)
        if parent is not None:
            moves.append(send(parent, chunk))
    return moves


def broadcast(
    rank: int, size: int, root: int, arity: int = 2, num_chunks: int = 1
) -> Program:
    """Receive every chunk from the parent and send it to the children."""
    parent = parent_of(rank, size, root, arity)
    children = children_of(rank, size, root, arity)
    moves: Program = []
    for chunk in range(num_chunks):
        if parent is not None:
            moves.append(copy(parent, chunk))
        moves += (send(child, chunk) for child in children)
    return moves


def all_reduce(rank: int, size: int, arity: int = 2) -> Program:
    """Reduce to rank 0, then broadcast from it."""
    return reduce_to(rank, size, 0, arity) + broadcast(rank, size, 0, arity)


def gather(rank: int, size: int, root: int, arity: int = 2) -> Program:
    """Forward chunk i from rank i to the root."""
    moves: Program = []
    for child in children_of(rank, size, root, arity):
        moves += (copy(child, c) for c in _subtree(child, size, root, arity))
    parent = parent_of(rank, size, root, arity)
    if parent is not None:
        moves += (send(parent, c) for c in _subtree(rank, size, root, arity))
    return moves


def scatter(rank: int, size: int, root: int, arity: int = 2) -> Program:
    """Forward chunk i from the root to rank i."""
    moves: Program = []
    parent = parent_of(rank, size, root, arity)
    if parent is not None:
        moves += (copy(parent, c) for c in _subtree(rank, size, root, arity))
    for child in children_of(rank, size, root, arity):
        moves += (send(child, c) for c in _subtree(child, size, root, arity))
    return moves


def all_gather(rank: int, size: int, arity: int = 2) -> Program:
    """Gather on rank 0, then broadcast all chunks, including each rank's own."""
    return gather(rank, size, 0, arity) + broadcast(rank, size, 0, arity, size)


def reduce_scatter(rank: int, size: int, arity: int = 2) -> Program:
    """Reduce all chunks to rank 0, then scatter."""
    return reduce_to(rank, size, 0, arity, size) + scatter(rank, size, 0, arity)
