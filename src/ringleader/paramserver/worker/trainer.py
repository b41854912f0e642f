"""What a worker computes: a pure function of weights, seed, batch number and steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector
from ringleader.paramserver.tasks.batch_order import indices, mixed_seed
from ringleader.paramserver.tasks.device import to_device
from ringleader.paramserver.tasks.samples import Batch, Samples, batch_length
from ringleader.paramserver.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
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
class StepResult:
    """What came out of a stint."""

    update: Update
    num_samples: int
    loss: float
    """The mean over all samples, each seen with the weights of its own step."""


class Trainer:
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

    def gather(self, assignment: Assignment) -> Iterator[Batch]:
        """The batches of a stint, in order, still in main memory."""
        size, count = assignment.batch_size, len(self.samples)
        for number in assignment.batches:
            yield self.samples.batch(indices(self._seed, number, size, count))

    def compute(
        self, manifest: Manifest, assignment: Assignment, batches: Iterable[Batch]
    ) -> StepResult:
        """The mean gradient over one batch, or the difference that H steps make."""
        self.model.train()
        before = manifest.buffer_values(self.model)
        if assignment.steps == 1:
            loss, num_samples = self._backward(
                assignment.first_batch, next(iter(batches))
            )
            parameters, losses = manifest.gradient(self.model), loss * num_samples
        else:
            start = manifest.values(self.model)
            losses, num_samples = self._walk(assignment, batches)
            parameters = manifest.values(self.model) - start
        buffers = manifest.buffer_values(self.model) - before
        self._check(parameters, assignment)
        return StepResult(
            Update(parameters, buffers), num_samples, losses / num_samples
        )

    def _walk(
        self, assignment: Assignment, batches: Iterable[Batch]
    ) -> tuple[float, int]:
        """Make the steps; the sum of losses, and over how many samples.

        The optimizer is new for each stint: what it remembered would depend on who
        computed the one before.
        """
        optimizer = self._task.optimizer(self.model)
        for group in optimizer.param_groups:
            group["lr"] *= assignment.lr
        losses, total = 0.0, 0
        for number, batch in zip(assignment.batches, batches, strict=True):
            loss, num_samples = self._backward(number, batch)
            optimizer.step()
            losses, total = losses + loss * num_samples, total + num_samples
        return losses, total

    def _backward(self, number: int, batch: Batch) -> tuple[float, int]:
        """Leave the gradients of one batch in the model; its loss and its length."""
        # Dropout, too, is drawn by the number of the batch.
        torch.manual_seed(mixed_seed(self._seed, number))
        self.model.zero_grad(set_to_none=True)
        loss = self._task.loss(self.model, to_device(batch, self._device))
        value = self._mean(loss, number)
        loss.backward()  # type: ignore[no-untyped-call]
        return value, batch_length(batch)

    def _mean(self, loss: object, number: int) -> float:
        who = f"task {self._task.name}: the loss of batch {number}"
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ConfigError(f"{who} is not one number; loss() gives the mean")
        value = float(loss.detach())
        if not math.isfinite(value):
            text = "the training has gone astray; lower the learning rate"
            raise ConfigError(f"{who} is {value}: {text}")
        return value

    def _check(self, parameters: Vector, assignment: Assignment) -> None:
        if not np.isfinite(parameters).all():
            where = f"batch {assignment.first_batch} of version {assignment.version}"
            text = f"task {self._task.name}: {where} gave a gradient that is no number"
            raise ConfigError(f"{text}; lower the learning rate or clip in the loss")
