"""How much each rank's batch weighs in the gradient of all batches.

Ranks of unlike machines have batches of unlike size. Every strategy averages the
gradients of the data ranks, so each rank's loss is multiplied by its rows over the mean
number of rows. The numbers travel while the model computes its first output.

Ranks that share layers must also draw the same random numbers, or dropout would give
each another activation: all use the seed of the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ringleader.errors import ConfigError
from ringleader.parallel.batch import Batch
from ringleader.parallel.grid import Grid

MAX_SEED = 1 << 24
"""What a float32 can hold; not every device has float64."""


@dataclass(frozen=True, slots=True)
class PendingShares:
    """The rows of all ranks, on their way."""

    grid: Grid
    table: Tensor
    work: dist.Work | None

    def mean_rows(self) -> float:
        """Return the mean number of rows of the data ranks.

        Raises ConfigError on all ranks if ranks that must have the same batch do not,
        or if all batches are empty.
        """
        table = [(int(rows), mark) for rows, mark, _ in self._received()]
        return mean_rows(self.grid, table)

    def seed(self) -> int:
        """Return the seed of the first rank that has the same data."""
        mine = self.grid.data_rank(self.grid.rank)
        first = min(r for r in self.grid.ranks if self.grid.data_rank(r) == mine)
        return int(self._received()[first][2])

    def _received(self) -> list[list[float]]:
        if self.work is not None:
            self.work.wait()
        rows: list[list[float]] = self.table.tolist()
        return rows


def mean_rows(grid: Grid, table: Sequence[tuple[int, float]]) -> float:
    """Return the mean over the data ranks; ``table`` has rows and mark of each rank."""
    rows: dict[int, int] = {}
    first: dict[int, int] = {}
    for rank in sorted(grid.ranks):
        share = grid.data_rank(rank)
        other = first.setdefault(share, rank)
        if repr(table[rank]) != repr(table[other]):  # NaN equals NaN here
            raise ConfigError(
                f"step: ranks {other} and {rank} hold parts of the same layers and "
                "need the same batch; give both the data of "
                f"trainer.data_rank ({share} of {grid.data})"
            )
        rows[share] = table[rank][0]
    total = sum(rows.values())
    if not total:
        raise ConfigError("step: the batches of all ranks are empty")
    return total / grid.data


def exchange_rows(grid: Grid, batch: Batch, step: int, device: str) -> PendingShares:
    """Start to tell all ranks how many rows this rank has."""
    mark = batch.fingerprint() if grid.data < len(grid.ranks) else 0.0
    seed = (torch.initial_seed() + step * 1_000_003) % MAX_SEED
    mine = torch.tensor([batch.rows(), mark, seed], dtype=torch.float32, device=device)
    table = mine.new_empty(len(grid.ranks), len(mine))
    work = dist.all_gather(list(table.unbind()), mine, async_op=True)
    return PendingShares(grid, table, work)


def sum_over_data(grid: Grid, value: Tensor) -> PendingSum:
    """Start to add up a number of each data rank."""
    mine = value.view(1)
    table = mine.new_empty(len(grid.ranks), 1)
    work = dist.all_gather(list(table.unbind()), mine, async_op=True)
    return PendingSum(grid, table, work)


@dataclass(frozen=True, slots=True)
class PendingSum:
    """A number of all ranks, on their way."""

    grid: Grid
    table: Tensor
    work: dist.Work | None

    def wait(self) -> Tensor:
        """Return the sum over the data ranks, the same bits on all ranks."""
        if self.work is not None:
            self.work.wait()
        firsts = {self.grid.data_rank(rank): rank for rank in self.grid.ranks}
        return self.table[[*firsts.values()]].sum()
