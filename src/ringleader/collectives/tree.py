"""k-ary tree: heap numbering from the root, rotated so that any rank can be root.

Depth d = ceil(log_k n). all_reduce 2d steps; an inner rank moves (k+1) S bytes each
way, so trees are for latency, not for bandwidth.
"""

from __future__ import annotations

from ringleader.collectives.schedule import Program, copy, reduce, send


def parent_of(rank: int, size: int, root: int, arity: int) -> int | None:
    """The rank above, or None at the root."""
    place = (rank - root) % size
    return None if place == 0 else ((place - 1) // arity + root) % size


def children_of(rank: int, size: int, root: int, arity: int) -> list[int]:
    """The ranks below, in heap order."""
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
    """Every chunk is collected from the children and passed up."""
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
    """Every chunk comes from the parent and goes to the children."""
    parent = parent_of(rank, size, root, arity)
    children = children_of(rank, size, root, arity)
    moves: Program = []
    for chunk in range(num_chunks):
        if parent is not None:
            moves.append(copy(parent, chunk))
        moves += (send(child, chunk) for child in children)
    return moves


def all_reduce(rank: int, size: int, arity: int = 2) -> Program:
    """Up to rank 0 and down again."""
    return reduce_to(rank, size, 0, arity) + broadcast(rank, size, 0, arity)


def gather(rank: int, size: int, root: int, arity: int = 2) -> Program:
    """Chunk i starts on rank i; all end on the root."""
    moves: Program = []
    for child in children_of(rank, size, root, arity):
        moves += (copy(child, c) for c in _subtree(child, size, root, arity))
    parent = parent_of(rank, size, root, arity)
    if parent is not None:
        moves += (send(parent, c) for c in _subtree(rank, size, root, arity))
    return moves


def scatter(rank: int, size: int, root: int, arity: int = 2) -> Program:
    """All chunks start on the root; chunk i ends on rank i."""
    moves: Program = []
    parent = parent_of(rank, size, root, arity)
    if parent is not None:
        moves += (copy(parent, c) for c in _subtree(rank, size, root, arity))
    for child in children_of(rank, size, root, arity):
        moves += (send(child, c) for c in _subtree(child, size, root, arity))
    return moves


def all_gather(rank: int, size: int, arity: int = 2) -> Program:
    """Gather to rank 0, then broadcast everything (own chunks come back too)."""
    return gather(rank, size, 0, arity) + broadcast(rank, size, 0, arity, size)


def reduce_scatter(rank: int, size: int, arity: int = 2) -> Program:
    """Reduce everything to rank 0, then scatter."""
    return reduce_to(rank, size, 0, arity, size) + scatter(rank, size, 0, arity)
