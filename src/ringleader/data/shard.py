"""``shard``: each rank's share of a dataset, step by step.

A step takes the next ``global_batch`` samples of the epoch's order and divides them
among the ranks. The position is a number of samples of all ranks together, so a run
continues in mid-epoch on another number of ranks: nothing is repeated or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset, Sampler

from ringleader.data.permutation import Permutation
from ringleader.data.quotas import quotas
from ringleader.errors import ConfigError

_T = TypeVar("_T")

_STEPS_AHEAD = 4
"""Steps whose samples a dataset is told before it is asked for them."""


class Shard(Generic[_T]):
    """The batches of one rank. Iterating goes on from the position to the epoch's end.

    Every batch has a sample, except if a run goes on with more ranks than samples are
    left in the epoch: then some ranks get one empty batch.

    ``position`` counts the samples of all ranks that this epoch has used. Those of a
    step count when its batch is handed out, so a checkpoint after the step is exact,
    however far the DataLoader has read ahead.
    """

    def __init__(  # noqa: PLR0913 - one parameter per option
        self,
        dataset: Dataset[_T],
        global_batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        weights: Sequence[float] | None = None,
        rank: int | None = None,
        size: int | None = None,
        **loader: Any,  # noqa: ANN401  # options of torch's DataLoader
    ) -> None:
        self.dataset = dataset
        self.global_batch = global_batch
        self._given = (rank, size)
        self.rank, self.size = _place(rank, size)
        self.weights = list(weights) if weights is not None else None
        self.epoch = 0
        self.position = 0
        self._seed = seed
        self._shuffle = shuffle
        self._loader = loader
        self._samples = len(dataset)  # type: ignore[arg-type]
        _check(self._samples, global_batch, self.weights, self.size)

    def follow(self) -> None:
        """Take rank and size from the process group, which may be a new one.

        Iterating and ``len`` do that, too. With another number of ranks, set
        ``weights`` first.
        """
        self.rank, self.size = _place(*self._given)
        _check(self._samples, self.global_batch, self.weights, self.size)

    def __len__(self) -> int:
        """Return the steps that are left in this epoch."""
        self.follow()
        return len(self.steps())

    def __iter__(self) -> Iterator[_T]:
        """Yield this rank's batch of each step; then the next epoch begins."""
        self.follow()
        if self.position == self._samples:  # the loop ended at the last batch
            self._next_epoch()
        prefetch = getattr(self.dataset, "prefetch", None)
        plan = _Batches(self._plan(), prefetch)
        batches = cast("Sampler[list[int]]", plan)
        steps = self.steps()
        loader = DataLoader(self.dataset, batch_sampler=batches, **self._loader)
        for batch, (begin, end) in zip(loader, steps, strict=True):
            mine = self.indices(begin, end)
            self.position = end
            yield batch if mine else _emptied(batch)
        self._next_epoch()

    def steps(self) -> list[tuple[int, int]]:
        """Return the positions at which the steps left begin and end.

        A rest of fewer samples than ranks belongs to the step before it.
        """
        begins = [*range(self.position, self._samples, self.global_batch)]
        if len(begins) > 1 and self._samples - begins[-1] < self.size:
            begins.pop()
        return [*pairwise([*begins, self._samples])]

    def indices(self, begin: int, end: int) -> list[int]:
        """Return the samples of this rank in the step from ``begin`` to ``end``."""
        shares = quotas(end - begin, self.weights or [1.0] * self.size)
        first = begin + sum(shares[: self.rank])
        positions = np.arange(first, first + shares[self.rank], dtype=np.int64)
        if not self._shuffle:
            return [int(p) for p in positions]
        order = Permutation(self._samples, self._seed, self.epoch)
        return [int(index) for index in order(positions)]

    def state_dict(self) -> dict[str, int]:
        """Return epoch and position; the same on all ranks."""
        return {"epoch": self.epoch, "position": self.position, **self._order()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a state; the number of ranks and the weights may differ.

        Raises ConfigError if it is of another dataset or order.
        """
        for name, mine in self._order().items():
            if (theirs := state[name]) != mine:
                raise ConfigError(f"{name}: {mine} here, {theirs} in the checkpoint")
        epoch, position = state["epoch"], state["position"]
        if not 0 <= position <= self._samples:
            raise ConfigError(f"position {position} of {self._samples} samples")
        self.epoch, self.position = epoch, position
        if position == self._samples:  # saved after the last step of an epoch
            self._next_epoch()

    def _order(self) -> dict[str, int]:
        """Return what the order of the samples follows from, besides the epoch."""
        shuffle = int(self._shuffle)
        return {"samples": self._samples, "seed": self._seed, "shuffle": shuffle}

    def _plan(self) -> list[list[int]]:
        """Return the samples of each step; instead of none, one that is dropped."""
        return [self.indices(begin, end) or [0] for begin, end in self.steps()]

    def _next_epoch(self) -> None:
        self.epoch += 1
        self.position = 0


class _Batches:
    """A batch sampler: the samples of each step, planned when iterating begins.

    ``prefetch`` is told the samples of the next steps, for datasets that get their
    items from another machine.
    """

    def __init__(
        self, plan: list[list[int]], prefetch: Callable[[list[int]], None] | None
    ) -> None:
        self._plan = plan
        self._prefetch = prefetch

    def __iter__(self) -> Iterator[list[int]]:
        told = 0
        for number, batch in enumerate(self._plan):
            ahead = self._plan[told : number + 1 + _STEPS_AHEAD]
            if self._prefetch is not None and ahead:
                self._prefetch([index for step in ahead for index in step])
                told += len(ahead)
            yield batch

    def __len__(self) -> int:
        return len(self._plan)


def shard(  # noqa: PLR0913 - one parameter per option
    dataset: Dataset[_T],
    global_batch: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    weights: Sequence[float] | None = None,
    rank: int | None = None,
    size: int | None = None,
    **loader: Any,  # noqa: ANN401  # options of torch's DataLoader
) -> Shard[_T]:
    """Return this rank's share of a dataset, as batches of a torch DataLoader.

    Each step takes ``global_batch`` samples of all ranks together; the last one of an
    epoch takes what is left, so its size differs. ``weights`` gives faster machines
    more: with [2, 1], rank 0 gets two thirds. All arguments are the same on all ranks,
    else samples are repeated or left out. To average correctly, weigh each rank's
    mean loss with its number of samples. The order follows from ``seed`` and the epoch
    alone. ``rank`` and ``size`` are those of the process group unless given: ranks that
    share a model need the same data. Further arguments go to the DataLoader
    (num_workers, collate_fn).

    Save the result with ``ringleader.checkpoint``: a run then continues in mid-epoch,
    also on another number of ranks.
    """
    return Shard(
        dataset,
        global_batch,
        seed=seed,
        shuffle=shuffle,
        weights=weights,
        rank=rank,
        size=size,
        **loader,
    )


def _place(rank: int | None, size: int | None) -> tuple[int, int]:
    """Return rank and size: as given, of the process group, or alone."""
    if rank is not None and size is not None:
        return rank, size
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _check(
    samples: int, batch: int, weights: Sequence[float] | None, size: int
) -> None:
    if samples < 1:
        raise ConfigError("the dataset is empty")
    if batch < size:
        text = f"global_batch={batch} is less than one sample for each of {size} ranks"
        raise ConfigError(text)
    if weights is not None and (len(weights) != size or min(weights) <= 0):
        raise ConfigError(f"weights={list(weights)}: {size} numbers above 0 needed")


def _emptied(batch: _T) -> _T:
    """Return a batch without samples: tensors of length 0."""
    return cast("_T", tree_map_only(Tensor, lambda tensor: tensor[:0], batch))
