"""Star algorithms: all ranks communicate with one central rank.

They take two steps at most, and the central rank moves (n-1) S bytes. They suit tiny
tensors, two ranks, and networks where only one rank accepts connections.
"""

from __future__ import annotations

from ringleader.collectives.schedule import Program, copy, reduce, send


def _others(root: int, size: int) -> list[int]:
    return [rank for rank in range(size) if rank != root]


def reduce_to(rank: int, size: int, root: int, num_chunks: int = 1) -> Program:
    """Add every rank's chunks on the root, in rank order."""
    chunks = range(num_chunks)
    if rank != root:
        return [send(root, c) for c in chunks]
    return [reduce(p, c) for c in chunks for p in _others(root, size)]


def broadcast(rank: int, size: int, root: int, num_chunks: int = 1) -> Program:
    """Send every chunk from the root to every rank."""
    chunks = range(num_chunks)
    if rank != root:
        return [copy(root, c) for c in chunks]
    return [send(p, c) for c in chunks for p in _others(root, size)]


def all_reduce(rank: int, size: int) -> Program:
    """Reduce to rank 0, then broadcast from it."""
    return reduce_to(rank, size, 0) + broadcast(rank, size, 0)


def gather(rank: int, size: int, root: int) -> Program:
    """Send chunk i from rank i to the root."""
    if rank != root:
        return [send(root, rank)]
    return [copy(p, p) for p in _others(root, size)]


def scatter(rank: int, size: int, root: int) -> Program:
    """Send chunk i from the root to rank i."""
    if rank != root:
        return [copy(root, rank)]
    return [send(p, p) for p in _others(root, size)]


def all_gather(rank: int, size: int) -> Program:
    """Gather on rank 0, then broadcast all chunks."""
    return gather(rank, size, 0) + broadcast(rank, size, 0, size)


def reduce_scatter(rank: int, size: int) -> Program:
    """Reduce all chunks on rank 0, then scatter."""
    return reduce_to(rank, size, 0, size) + scatter(rank, size, 0)
