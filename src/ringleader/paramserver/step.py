"""What a worker computes: a pure function of weights, seed, batch number and steps.

Samples form one endless line: a shuffled epoch, then the next, each in an order that
depends on the seed and the epoch alone. Batch *b* is the *b*-th run of ``batch_size``
of them. So it does not matter who computes a batch, nor whether anybody did before, and
batches 2v and 2v + 1 of two workers are together one batch of a run alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ringleader.errors import ConfigError
from ringleader.paramserver.bodies import Update
from ringleader.paramserver.manifest import Manifest, Vector
from ringleader.paramserver.task import Task
from ringleader.paramserver.task_data import Batch, Samples, count_of, to_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Stint:
    """What the server asks for: some batches, computed on the weights of a version."""

    version: int
    shard: int
    shards: int
    first_batch: int
    steps: int
    batch_size: int
    lr: float
    """When there are several steps, the optimizer's rates are multiplied by it."""

    @property
    def batches(self) -> range:
        """The numbers of its batches."""
        return range(self.first_batch, self.first_batch + self.steps)


@dataclass(frozen=True, slots=True)
class Result:
    """What came out of a stint."""

    update: Update
    num_samples: int
    loss: float
    """The mean over all samples, each seen with the weights of its own step."""


def indices(seed: int, batch: int, batch_size: int, count: int) -> Tensor:
    """Which of ``count`` samples are in a batch."""
    begin, end = batch * batch_size, (batch + 1) * batch_size
    epochs = range(begin // count, (end - 1) // count + 1)
    line = np.concatenate([_order(seed, epoch, count) for epoch in epochs])
    start = epochs.start * count
    return torch.from_numpy(line[begin - start : end - start])


class Bench:
    """Where stints are worked on: a model on a device, and the samples.

    One thread at a time; ``gather`` may run beside ``compute``.
    """

    def __init__(
        self, task: Task, samples: Samples, device: torch.device, *, seed: int
    ) -> None:
        self.model = task.model().to(device)
        self.samples = samples
        self._task = task
        self._device = device
        self._seed = seed

    def gather(self, stint: Stint) -> Iterator[Batch]:
        """The batches of a stint, in order, still in main memory."""
        size, count = stint.batch_size, len(self.samples)
        for number in stint.batches:
            yield self.samples.batch(indices(self._seed, number, size, count))

    def compute(
        self, manifest: Manifest, stint: Stint, batches: Iterable[Batch]
    ) -> Result:
        """The mean gradient over one batch, or the difference that H steps make."""
        self.model.train()
        before = manifest.buffer_values(self.model)
        if stint.steps == 1:
            loss, num_samples = self._backward(stint.first_batch, next(iter(batches)))
            parameters, losses = manifest.gradient(self.model), loss * num_samples
        else:
            start = manifest.values(self.model)
            losses, num_samples = self._walk(stint, batches)
            parameters = manifest.values(self.model) - start
        buffers = manifest.buffer_values(self.model) - before
        self._check(parameters, stint)
        return Result(Update(parameters, buffers), num_samples, losses / num_samples)

    def _walk(self, stint: Stint, batches: Iterable[Batch]) -> tuple[float, int]:
        """Make the steps; the sum of losses, and over how many samples.

        The optimizer is new for each stint: what it remembered would depend on who
        computed the one before.
        """
        optimizer = self._task.optimizer(self.model)
        for group in optimizer.param_groups:
            group["lr"] *= stint.lr
        losses, total = 0.0, 0
        for number, batch in zip(stint.batches, batches, strict=True):
            loss, num_samples = self._backward(number, batch)
            optimizer.step()
            losses, total = losses + loss * num_samples, total + num_samples
        return losses, total

    def _backward(self, number: int, batch: Batch) -> tuple[float, int]:
        """Leave the gradients of one batch in the model; its loss and its length."""
        # Dropout, too, is drawn by the number of the batch.
        torch.manual_seed(_mixed(self._seed, number))
        self.model.zero_grad(set_to_none=True)
        loss = self._task.loss(self.model, to_device(batch, self._device))
        value = self._mean(loss, number)
        loss.backward()  # type: ignore[no-untyped-call]
        return value, count_of(batch)

    def _mean(self, loss: object, number: int) -> float:
        who = f"task {self._task.name}: the loss of batch {number}"
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ConfigError(f"{who} is not one number; loss() gives the mean")
        value = float(loss.detach())
        if not math.isfinite(value):
            text = "the training has gone astray; lower the learning rate"
            raise ConfigError(f"{who} is {value}: {text}")
        return value

    def _check(self, parameters: Vector, stint: Stint) -> None:
        if not np.isfinite(parameters).all():
            where = f"batch {stint.first_batch} of version {stint.version}"
            text = f"task {self._task.name}: {where} gave a gradient that is no number"
            raise ConfigError(f"{text}; lower the learning rate or clip in the loss")


def pick_device(name: str = "auto") -> torch.device:
    """The device called so; "auto": CUDA, else Apple's GPU, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as exc:
        reason = str(exc).splitlines()[0]
        raise ConfigError(f"--device {name}: cannot be used here: {reason}") from exc
    return device


@lru_cache(maxsize=4)  # an epoch has many batches; two are in use at its end
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """A shuffled epoch. RandomState's stream is frozen, in every version of numpy."""
    generator = np.random.RandomState(_mixed(seed, epoch) % 2**32)
    return generator.permutation(count).astype(np.int64)


def _mixed(seed: int, number: int) -> int:
    """One seed of two numbers, far apart for neighbours (SplitMix64)."""
    mask = 2**64 - 1
    value = (seed * 0x9E3779B97F4A7C15 + number + 1) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & mask
    return (value ^ (value >> 31)) & (2**63 - 1)
