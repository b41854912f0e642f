"""BenchPlan: what a benchmark run measures, and how often. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ringleader.collectives.algorithm import algorithms
from ringleader.errors import ConfigError

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

OURS = ("shm", "tcp")
"""Ringleader over shared memory where possible, and over TCP only."""

PEERS = ("gloo", "mpi")
"""Libraries to compare with."""

TITLES = {
    "shm": "Ringleader shm",
    "tcp": "Ringleader tcp",
    "gloo": "Gloo",
    "mpi": "OpenMPI",
}

SHORT_TITLES = {"shm": "shm", "tcp": "tcp", "gloo": "Gloo", "mpi": "MPI"}
"""Titles for columns of tables."""

ITEM_BYTES = 4
"""Size of a float32, the usual type of gradients."""

ALGORITHMS = tuple(
    dict.fromkeys(name for o in OPERATIONS for name in (*algorithms(o), "shm"))
)
"""All names that ``--algorithms`` accepts."""

DEFAULT_SIZES = "4,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
QUICK_SIZES = "4,64KiB,1MiB,16MiB"
LAN_SIZES = "4,4KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"

_SHARDED = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_MAX_ITERATIONS = 20_000
_LONG_CALL_S = 0.1  # a longer call is a batch by itself
_ROUGH_BYTES_PER_S = 1e9  # moved by all ranks of a small machine together


@dataclass(frozen=True, slots=True)
class Competitor:
    """One library, with a fixed algorithm or (None) its automatic choice."""

    library: str
    algorithm: str | None = None

    @property
    def title(self) -> str:
        """Title in plots and messages."""
        return " ".join(filter(None, (TITLES[self.library], self.algorithm)))

    @property
    def short_title(self) -> str:
        """Title in tables."""
        return " ".join(filter(None, (SHORT_TITLES[self.library], self.algorithm)))

    @property
    def is_ours(self) -> bool:
        """Whether it is Ringleader rather than a library to compare with."""
        return self.library in OURS


@dataclass(frozen=True, slots=True)
class BenchCell:
    """One operation at one size; all competitors are measured on the same cells."""

    operation: str
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """All that one benchmark run measures."""

    ranks: tuple[int, ...]
    """Numbers of ranks; each is run by its own set of processes."""

    sizes_bytes: tuple[int, ...]
    """Sizes of the largest tensor that any rank holds."""

    operations: tuple[str, ...]
    competitors: tuple[Competitor, ...]

    rounds: int = 5
    """Turns per competitor and cell, of which the median is reported. More turns give
    steadier results and take longer."""

    batch_s: float = 0.05
    """Length of one turn. A longer turn hides its start; with shorter turns a
    disturbance of the machine affects all competitors alike."""

    def __post_init__(self) -> None:
        if not self.competitors:
            raise ConfigError("bench: nothing to measure; give --transport or --peers")
        _require_known("operations", self.operations, OPERATIONS)
        _require_known("transport and peers", self.libraries, OURS + PEERS)
        fixed = tuple(c.algorithm for c in self.competitors if c.algorithm)
        _require_known("algorithms", fixed or ALGORITHMS, ALGORITHMS)
        if min(self.ranks, default=0) < 2:
            raise ConfigError(f"bench: ranks must all be >= 2, got {self.ranks}")
        if min(self.sizes_bytes, default=0) < ITEM_BYTES:
            raise ConfigError(
                f"bench: sizes must be >= 4 bytes, got {self.sizes_bytes}"
            )
        if self.rounds < 1 or self.batch_s <= 0:
            what = f"rounds >= 1 and batch_s > 0, got {self.rounds} and {self.batch_s}"
            raise ConfigError(f"bench: need {what}")

    @property
    def libraries(self) -> tuple[str, ...]:
        """All libraries that are measured, without duplicates."""
        return tuple(dict.fromkeys(c.library for c in self.competitors))

    def competitors_for(self, operation: str) -> tuple[Competitor, ...]:
        """Return the competitors whose algorithm exists for this operation.

        The algorithm "shm" exists only for the shared-memory transport.
        """
        scheduled = (None, *algorithms(operation))
        return tuple(
            competitor
            for competitor in self.competitors
            if competitor.algorithm in scheduled
            or (competitor.library, competitor.algorithm) == ("shm", "shm")
        )

    def cells(self) -> Iterator[BenchCell]:
        """Yield every operation at every size."""
        for operation in self.operations:
            for size in self.sizes_bytes:
                yield BenchCell(operation, size)

    def turn_cost_s(self, cell: BenchCell, ranks: int) -> float:
        """Estimate the length of one turn, for the progress bar."""
        return max(self.batch_s, cell.total_bytes * ranks / _ROUGH_BYTES_PER_S)

    def cost_s(self) -> float:
        """Estimate the length of the run, counting a warm-up as one turn."""
        return sum(
            self.turn_cost_s(cell, ranks)
            * len(self.competitors_for(cell.operation))
            * (self.rounds + 1)
            for ranks in self.ranks
            for cell in self.cells()
        )


def competitors(
    transports: tuple[str, ...], peers: tuple[str, ...], fixed: tuple[str, ...]
) -> tuple[Competitor, ...]:
    """List our transports, each also with every fixed algorithm, then the peers."""
    ours = [
        Competitor(library, algorithm)
        for library in transports
        for algorithm in (None, *fixed)
    ]
    return (*ours, *(Competitor(library) for library in peers))


def shard_items(cell: BenchCell, ranks: int) -> int:
    """Number of elements that one rank contributes or keeps, at least 1."""
    items = math.ceil(cell.total_bytes / ITEM_BYTES)
    return max(1, items // ranks) if cell.operation in _SHARDED else items


def total_items(cell: BenchCell, ranks: int) -> int:
    """Number of elements of the largest tensor of a rank, a multiple of its shard."""
    shard = shard_items(cell, ranks)
    return shard * ranks if cell.operation in _SHARDED else shard


def needed_bytes(cell: BenchCell, ranks: int, pools: int) -> int:
    """Estimate the memory of one cell: input and output of every rank of every pool,
    and as much again for what the libraries allocate."""
    return 2 * 2 * cell.total_bytes * ranks * pools


def iterations(per_call_s: float, batch_s: float) -> int:
    """Number of calls that fill a batch; at least three unless a call is very long."""
    fewest = 1 if per_call_s > _LONG_CALL_S else 3
    return max(fewest, min(_MAX_ITERATIONS, round(batch_s / max(per_call_s, 1e-7))))


def turn_order(
    competitors: tuple[Competitor, ...], turn: int
) -> tuple[Competitor, ...]:
    """Order of one round; it is reversed every time, so that none is always first."""
    return competitors if turn % 2 == 0 else competitors[::-1]


def _require_known(what: str, got: tuple[str, ...], known: tuple[str, ...]) -> None:
    strangers = [name for name in got if name not in known]
    if strangers or not got:
        there = ", ".join(known)
        raise ConfigError(f"bench: unknown {what} {strangers}; use {there}")
