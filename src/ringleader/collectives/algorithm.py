"""The algorithms of every operation, and the program of a rank by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ringleader.collectives import direct, recursive_doubling, ring, star, tree
from ringleader.collectives.schedule import Program
from ringleader.errors import ConfigError

ROOTED = frozenset({"reduce", "broadcast", "gather", "scatter"})
"""Operations that have a root."""

# operation -> algorithm -> builder. Builders take (rank, size) or, for rooted
# operations, (rank, size, root); those of the tree take the arity as last argument.
_BUILDERS: dict[str, dict[str, Callable[..., Program]]] = {
    "all_reduce": {
        "ring": ring.all_reduce,
        "exchange": direct.exchange_all_reduce,
        "direct": direct.all_reduce,
        "doubling": recursive_doubling.all_reduce,
        "halving": recursive_doubling.halving_all_reduce,
        "tree": tree.all_reduce,
        "star": star.all_reduce,
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "direct": direct.reduce_scatter,
        "halving": recursive_doubling.reduce_scatter,
        "tree": tree.reduce_scatter,
        "star": star.reduce_scatter,
    },
    "all_gather": {
        "ring": ring.all_gather,
        "direct": direct.all_gather,
        "doubling": recursive_doubling.all_gather,
        "tree": tree.all_gather,
        "star": star.all_gather,
    },
    "reduce": {
        "ring": ring.reduce_to,
        "doubling": recursive_doubling.reduce_to,
        "tree": tree.reduce_to,
        "star": star.reduce_to,
    },
    "broadcast": {
        "ring": ring.broadcast,
        "doubling": recursive_doubling.broadcast,
        "tree": tree.broadcast,
        "star": star.broadcast,
    },
    "gather": {"star": star.gather, "tree": tree.gather},
    "scatter": {"star": star.scatter, "tree": tree.scatter},
    "all_to_all": {"direct": direct.all_to_all},
}

OPERATIONS = tuple(_BUILDERS)
"""Every collective with schedules. A barrier is an all_reduce of one byte."""


def algorithms(operation: str) -> tuple[str, ...]:
    """Return the algorithm names that ``program`` accepts for ``operation``."""
    return tuple(_BUILDERS[operation])


@lru_cache(maxsize=4096)
def _program(
    operation: str, algorithm: str, rank: int, size: int, root: int, arity: int
) -> tuple[tuple[object, ...], ...]:
    build = _BUILDERS[operation][algorithm]
    args = [rank, size]
    if operation in ROOTED:
        args.append(root)
    if algorithm == "tree":
        args.append(arity)
    return tuple(build(*args))


def program(
    operation: str,
    algorithm: str,
    rank: int,
    size: int,
    *,
    root: int = 0,
    arity: int = 2,
) -> Program:
    """Return the program of ``rank``; raises ConfigError for an unknown algorithm."""
    if algorithm not in _BUILDERS.get(operation, {}):
        known = ", ".join(_BUILDERS.get(operation, {})) or "none"
        raise ConfigError(
            f"{operation}: unknown algorithm {algorithm!r}; choose one of: {known}"
        )
    if arity < 2:
        raise ConfigError(f"{operation}: tree arity must be >= 2, got {arity}")
    if not 0 <= root < size:
        raise ConfigError(
            f"{operation}: root {root} is not one of the ranks 0 to {size - 1}"
        )
    return list(_program(operation, algorithm, rank, size, root, arity))  # type: ignore[arg-type]
