"""How much each rank's batch weighs in the gradient of all batches.

Ranks of unlike machines have batches of unlike size. Every strategy averages the
gradients of the data ranks, so each rank's loss is multiplied by its rows over the mean
number of rows. Ranks tell each other before the model computes, so that a batch which
cannot be used is an error of all ranks and nobody waits.

Ranks that share layers must also draw the same random numbers, or dropout would give
each another activation: all use the seed of the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ringleader.errors import ConfigError
from ringleader.parallel.batch import Batch
from ringleader.parallel.grid import Grid

MAX_SEED = 1 << 24
"""What a float32 can hold; not every device has float64."""

UNUSABLE = -1
"""Sent in place of rows by a rank whose batch has none."""


@dataclass(frozen=True, slots=True)
class BatchShares:
    """What the ranks agree on before a step."""

    mean_rows: float
    """The mean number of rows of the data ranks."""

    seed: int
    """For random numbers; the same on all ranks with the same data."""

    is_even: bool
    """True if all data ranks have equally many rows."""


def agree_on_shares(
    grid: Grid,
    batch: Batch,
    step: int,
    device: str,
    check: Callable[[Batch], None] | None = None,
) -> BatchShares:
    """Tell all ranks how many rows this rank has.

    Raises ConfigError on all ranks if the batch of one cannot be used, which ``check``
    may find, if ranks that must have the same batch do not, or if all are empty.
    """
    error: ConfigError | None = None
    try:
        rows = batch.rows()
        if check is not None:
            check(batch)
    except ConfigError as exc:
        error, rows = exc, UNUSABLE
    mark = batch.fingerprint() if grid.data < len(grid.ranks) else 0.0
    seed = (torch.initial_seed() + step * 1_000_003) % MAX_SEED
    mine = torch.tensor([rows, mark, seed], dtype=torch.float32, device=device)
    table = mine.new_empty(len(grid.ranks), len(mine))
    dist.all_gather(list(table.unbind()), mine)
    if error is not None:
        raise error
    return shares_from(grid, table.tolist())


def shares_from(grid: Grid, table: Sequence[Sequence[float]]) -> BatchShares:
    """Return the shares; ``table`` has rows, mark and seed of each rank."""
    first: dict[int, int] = {}
    for rank in sorted(grid.ranks):
        if table[rank][0] == UNUSABLE:
            raise ConfigError(
                f"step: the batch of rank {rank} cannot be used; its error says why"
            )
        share = grid.data_rank(rank)
        other = first.setdefault(share, rank)
        if repr(table[rank][:2]) != repr(table[other][:2]):  # NaN equals NaN here
            raise ConfigError(
                f"step: ranks {other} and {rank} hold parts of the same layers and "
                "need the same batch; give both the data of "
                f"trainer.data_rank ({share} of {grid.data})"
            )
    rows = [int(table[rank][0]) for rank in first.values()]
    total = sum(rows)
    if not total:
        raise ConfigError("step: the batches of all ranks are empty")
    leader = first[grid.data_rank(grid.rank)]
    return BatchShares(
        mean_rows=total / grid.data,
        seed=int(table[leader][2]),
        is_even=len(set(rows)) == 1,
    )


@dataclass(frozen=True, slots=True)
class PendingSum:
    """A number and a mark of all ranks, on their way."""

    grid: Grid
    table: Tensor
    work: dist.Work | None

    def wait(self) -> Tensor:
        """Return the sum over the data ranks, the same bits on all ranks.

        Raises ConfigError on all ranks if ranks with the same data differ in the mark.
        """
        if self.work is not None:
            self.work.wait()
        marks: dict[int, tuple[int, float]] = {}
        for rank, mark in enumerate(self.table[:, 1].tolist()):
            other, known = marks.setdefault(self.grid.data_rank(rank), (rank, mark))
            if mark != known:
                raise ConfigError(
                    f"step: ranks {other} and {rank} hold parts of the same layers and "
                    "drew different numbers of random values: dropout inside layers "
                    "that are cut into unequal parts. Give plan= without them"
                )
        # Of the ranks with the same data the last one: in a pipeline, it has the loss.
        lasts = {self.grid.data_rank(rank): rank for rank in self.grid.ranks}
        return self.table[[*lasts.values()], 0].sum()


def sum_over_data(grid: Grid, value: Tensor, mark: float = 0.0) -> PendingSum:
    """Start to add up a number of each data rank.

    ``mark``, below 2^24, has to be the same on ranks with the same data.
    """
    mine = torch.stack([value, value.new_tensor(mark)])
    table = mine.new_empty(len(grid.ranks), len(mine))
    work = dist.all_gather(list(table.unbind()), mine, async_op=True)
    return PendingSum(grid, table, work)
