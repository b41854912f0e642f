"""What a benchmark run measures: contenders, the grid of cells, how often. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ringleader.collectives.algorithm import algorithms
from ringleader.errors import ConfigError

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

OURS = ("shm", "tcp")
"""Ringleader's own transports: shared memory where it can, or TCP only."""

PEERS = ("gloo", "mpi")
"""The engines we are compared with."""

TITLES = {
    "shm": "Ringleader shm",
    "tcp": "Ringleader tcp",
    "gloo": "Gloo",
    "mpi": "OpenMPI",
}

SHORT_TITLES = {"shm": "shm", "tcp": "tcp", "gloo": "Gloo", "mpi": "MPI"}
"""Where space is short; tables explain them."""

ITEM_BYTES = 4
"""Everything is float32, the type of gradients."""

ALGORITHMS = tuple(
    dict.fromkeys(name for o in OPERATIONS for name in (*algorithms(o), "shm"))
)
"""Every name that ``--algorithms`` accepts."""

DEFAULT_SIZES = "4,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
QUICK_SIZES = "4,64KiB,1MiB,16MiB"
LAN_SIZES = "4,4KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"

_SHARDED = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_MAX_ITERATIONS = 20_000
_LONG_CALL_S = 0.1  # one such call is a batch by itself
_ROUGH_BYTES_PER_S = 1e9  # what all ranks of a small machine move together


@dataclass(frozen=True, slots=True)
class Competitor:
    """One engine, with a fixed algorithm or (None) its own choice."""

    engine: str
    algorithm: str | None = None

    @property
    def title(self) -> str:
        """What plots and messages call it."""
        return " ".join(filter(None, (TITLES[self.engine], self.algorithm)))

    @property
    def short_title(self) -> str:
        """What tables call it."""
        return " ".join(filter(None, (SHORT_TITLES[self.engine], self.algorithm)))

    @property
    def is_ours(self) -> bool:
        """Whether it is Ringleader rather than an engine to compare with."""
        return self.engine in OURS


@dataclass(frozen=True, slots=True)
class Cell:
    """One operation at one size; every contender is measured on the same cells."""

    operation: str
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """A whole run."""

    ranks: tuple[int, ...]
    """Numbers of ranks; each gets its own set of processes."""

    sizes_bytes: tuple[int, ...]
    """Total sizes: the largest tensor that any rank holds."""

    operations: tuple[str, ...]
    competitors: tuple[Competitor, ...]

    rounds: int = 5
    """Turns per contender and cell. More is steadier and slower; the median counts."""

    batch_s: float = 0.05
    """Length of one turn. Longer hides the start; shorter alternates faster, so that
    a disturbance of the machine hits all contenders alike."""

    def __post_init__(self) -> None:
        if not self.competitors:
            raise ConfigError("bench: nothing to measure; name a transport or a peer")
        _require_known("operations", self.operations, OPERATIONS)
        _require_known("transport and peers", self.engines, OURS + PEERS)
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
    def engines(self) -> tuple[str, ...]:
        """Every engine that takes part, once."""
        return tuple(dict.fromkeys(c.engine for c in self.competitors))

    def competitors_for(self, operation: str) -> tuple[Competitor, ...]:
        """Those that can exist: schedules are known, and only shm has shared memory."""
        scheduled = (None, *algorithms(operation))
        return tuple(
            who
            for who in self.competitors
            if who.algorithm in scheduled
            or (who.engine, who.algorithm) == ("shm", "shm")
        )

    def cells(self) -> Iterator[Cell]:
        """Every operation at every size."""
        for operation in self.operations:
            for size in self.sizes_bytes:
                yield Cell(operation, size)

    def turn_cost_s(self, cell: Cell, ranks: int) -> float:
        """A rough length of one contender's turn, so that a progress bar is honest."""
        return max(self.batch_s, cell.total_bytes * ranks / _ROUGH_BYTES_PER_S)

    def cost_s(self) -> float:
        """All turns of the run, a warm-up counted as one."""
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
    """Ours first, each transport also with every fixed algorithm; then the peers."""
    ours = [
        Competitor(engine, algorithm)
        for engine in transports
        for algorithm in (None, *fixed)
    ]
    return (*ours, *(Competitor(engine) for engine in peers))


def shard_items(cell: Cell, ranks: int) -> int:
    """Elements that one rank contributes or keeps: at least one each."""
    items = math.ceil(cell.total_bytes / ITEM_BYTES)
    return max(1, items // ranks) if cell.operation in _SHARDED else items


def total_items(cell: Cell, ranks: int) -> int:
    """Elements of the largest tensor a rank holds; sharded ones are whole shards."""
    shard = shard_items(cell, ranks)
    return shard * ranks if cell.operation in _SHARDED else shard


def needed_bytes(cell: Cell, ranks: int, pools: int) -> int:
    """Memory of one cell: input and output of every rank of every set of processes,
    and as much again for what the engines allocate themselves."""
    return 2 * 2 * cell.total_bytes * ranks * pools


def iterations(per_call_s: float, batch_s: float) -> int:
    """How many calls fill a batch; at least three unless a call is very long."""
    fewest = 1 if per_call_s > _LONG_CALL_S else 3
    return max(fewest, min(_MAX_ITERATIONS, round(batch_s / max(per_call_s, 1e-7))))


def turn_order(
    competitors: tuple[Competitor, ...], turn: int
) -> tuple[Competitor, ...]:
    """The order in one round: it reverses every time, so nobody always goes first."""
    return competitors if turn % 2 == 0 else competitors[::-1]


def _require_known(what: str, got: tuple[str, ...], known: tuple[str, ...]) -> None:
    strangers = [name for name in got if name not in known]
    if strangers or not got:
        there = ", ".join(known)
        raise ConfigError(f"bench: unknown {what} {strangers}; there are: {there}")
