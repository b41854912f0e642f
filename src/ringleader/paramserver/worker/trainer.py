"""Computes updates: a pure function of weights, seed, batch numbers and steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector
from ringleader.paramserver.protocol.messages import Assignment
from ringleader.paramserver.tasks.batch_order import batch_indices, mixed_seed
from ringleader.paramserver.tasks.device import to_device
from ringleader.paramserver.tasks.samples import Batch, Samples, batch_length
from ringleader.paramserver.tasks.task import Task


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an assignment."""

    update: Update
    num_samples: int
    loss: float
    """The mean over all samples, each computed with the weights of its own step."""
    seconds: float
    """Time that it took to compute."""


class Trainer:
    """Computes assignments with a model on a device.

    One thread at a time; ``gather`` may run in another thread than ``compute``.
    """

    def __init__(
        self,
        task: Task,
        samples: Samples,
        device: torch.device,
        *,
        seed: int,
        is_local: bool = False,
    ) -> None:
        self.model = task.model().to(device)
        self.samples = samples
        self._task = task
        self._device = device
        self._seed = seed
        self._is_local = is_local
        """Keep the optimizer between assignments, and always send differences."""
        self._optimizer: torch.optim.Optimizer | None = None

    def gather(self, assignment: Assignment) -> Iterator[Batch]:
        """Iterate over the batches of an assignment in order, in main memory."""
        size, count = assignment.batch_size, len(self.samples)
        for number in assignment.batches:
            yield self.samples.batch(batch_indices(self._seed, number, size, count))

    def compute(
        self, manifest: Manifest, assignment: Assignment, batches: Iterable[Batch]
    ) -> StepResult:
        """Compute the mean gradient of one batch, or the difference that steps make."""
        began_s = time.monotonic()
        self.model.train()
        before = manifest.buffer_values(self.model)
        if assignment.steps == 1 and not self._is_local:
            batch = next(iter(batches))
            loss, num_samples = self._backward(assignment.first_batch, batch)
            parameters, losses = manifest.gradient(self.model), loss * num_samples
        else:
            start = manifest.values(self.model)
            losses, num_samples = self._local_steps(assignment, batches)
            parameters = manifest.values(self.model) - start
        buffers = manifest.buffer_values(self.model) - before
        self._check_finite(parameters, assignment)
        update = Update(parameters, buffers)
        took_s = time.monotonic() - began_s
        return StepResult(update, num_samples, losses / num_samples, took_s)

    def _local_steps(
        self, assignment: Assignment, batches: Iterable[Batch]
    ) -> tuple[float, int]:
        """Make the optimizer steps; return the sum of losses and how many samples.

        In rounds mode the optimizer stays. In others each assignment has a new one: the
        state of an old one would depend on who computed the assignment before.
        """
        optimizer = self._optimizer or self._task.optimizer(self.model)
        if self._is_local:
            self._optimizer = optimizer
        else:
            for group in optimizer.param_groups:
                group["lr"] *= assignment.lr
        losses, total = 0.0, 0
        for number, batch in zip(assignment.batches, batches, strict=True):
            loss, num_samples = self._backward(number, batch)
            optimizer.step()
            losses, total = losses + loss * num_samples, total + num_samples
        return losses, total

    def _backward(self, number: int, batch: Batch) -> tuple[float, int]:
        """Compute the gradients of one batch; return its loss and its length."""
        # The random numbers of dropout depend on the number of the batch alone.
        torch.manual_seed(self._seed_of(number))
        self.model.zero_grad(set_to_none=True)
        loss = self._task.loss(self.model, to_device(batch, self._device))
        value = self._loss_value(loss, number)
        loss.backward()  # type: ignore[no-untyped-call]
        return value, batch_length(batch)

    def _seed_of(self, number: int) -> int:
        return mixed_seed(self._seed, number)

    def _loss_value(self, loss: object, number: int) -> float:
        who = f"task {self._task.name}: the loss of batch {number}"
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ConfigError(f"{who} is not one number; loss() must return the mean")
        value = float(loss.detach())
        if not math.isfinite(value):
            text = "the training has diverged; lower the learning rate"
            raise ConfigError(f"{who} is {value}: {text}")
        return value

    def _check_finite(self, parameters: Vector, assignment: Assignment) -> None:
        if not np.isfinite(parameters).all():
            where = f"batch {assignment.first_batch} of version {assignment.version}"
            text = f"task {self._task.name}: the gradient of {where} is not finite"
            raise ConfigError(f"{text}; lower the learning rate or clip in the loss")
