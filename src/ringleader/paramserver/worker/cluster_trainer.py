"""Computes assignments on all machines of a cluster: each takes a part of every batch.

Every step applies the gradient of the mean over the whole batch, as one machine would.
A batch in which a machine was lost is computed again by the others.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector
from ringleader.paramserver.protocol.messages import Assignment, JoinAnswer
from ringleader.paramserver.tasks.batch_order import batch_indices, mixed_seed
from ringleader.paramserver.tasks.samples import Batch
from ringleader.paramserver.worker.cluster import Cluster, Order
from ringleader.paramserver.worker.join import PreparedTask
from ringleader.paramserver.worker.trainer import StepResult, Trainer


class ClusterTrainer(Trainer):
    """A trainer on each machine; all make the same steps."""

    manifest: Manifest
    cluster: Cluster
    run: JoinAnswer
    """The worker that the cluster is."""
    _begun = -1
    """The first batch of the last assignment."""
    _before: dict[str, Any]
    """The optimizer's state when it began."""

    @classmethod
    def of(
        cls,
        prepared: PreparedTask,
        device: torch.device,
        run: JoinAnswer,
        cluster: Cluster,
    ) -> Self:
        """Build the trainer of this machine."""
        task, samples = prepared.task, prepared.samples
        made = cls(task, samples, device, seed=run.seed, is_local=True)
        made.manifest, made.cluster, made.run = prepared.manifest, cluster, run
        return made

    def gather(self, assignment: Assignment) -> Iterator[Batch]:
        """Read nothing ahead: who computes which samples is decided step by step."""
        return iter(())

    def compute(
        self, manifest: Manifest, assignment: Assignment, batches: Iterable[Batch]
    ) -> StepResult:
        """Compute the difference that steps of all machines together make.

        On the leader, this orders the others to do the same.
        """
        if self.cluster.is_leader:
            self.cluster.exchange(Order(self.run, assignment))
        self._remember(assignment)
        self.cluster.share(list(manifest.tensors(self.model).values()))
        result = super().compute(manifest, assignment, batches)
        buffers = self._mean(result.update.buffers)
        return replace(result, update=Update(result.update.parameters, buffers))

    def _remember(self, assignment: Assignment) -> None:
        """Go back to where an assignment began, if a lost leader did not send it."""
        optimizer = self._optimizer or self._task.optimizer(self.model)
        if assignment.first_batch == self._begun:
            optimizer.load_state_dict(self._before)
        self._begun = assignment.first_batch
        self._before = copy.deepcopy(optimizer.state_dict())
        self._optimizer = optimizer

    def _mean(self, values: Vector) -> Vector:
        """Return the mean over the machines that are alive."""
        if not len(values):
            return values
        while (sums := self.cluster.sum(values, 0, 0.0)) is None:
            pass
        return sums.values / np.float32(len(self.cluster.living))

    def _local_steps(
        self, assignment: Assignment, batches: Iterable[Batch]
    ) -> tuple[float, int]:
        """Make the steps; return the sum of losses and how many samples."""
        assert self._optimizer is not None, "it began"
        losses, total = 0.0, 0
        for number in assignment.batches:
            loss, num_samples = self._joint_backward(assignment, number)
            self._optimizer.step()
            losses, total = losses + loss, total + num_samples
        return losses, total

    def _joint_backward(self, assignment: Assignment, number: int) -> tuple[float, int]:
        """Set the gradients to those of a whole batch; return its summed loss."""
        size, count = assignment.batch_size, len(self.samples)
        indices = batch_indices(self._seed, number, size, count)
        while True:
            began_s = time.monotonic()
            mine = self.cluster.part_of(indices)
            loss = self._own_backward(number, self.samples.batch(mine), len(mine))
            values = self._weighted(loss, len(mine))
            took_s = time.monotonic() - began_s
            sums = self.cluster.sum(values, len(mine), took_s)
            if sums is not None:
                break
        self._set_gradients(sums.values, sums.num_samples)
        return float(sums.values[-1]), sums.num_samples

    def _own_backward(self, number: int, batch: Batch, count: int) -> float:
        if not count:
            self.model.zero_grad(set_to_none=True)
            return 0.0
        return self._backward(number, batch)[0]

    def _weighted(self, loss: float, count: int) -> Vector:
        """Return gradients times samples, which parameters have one, and the loss."""
        manifest, named = self.manifest, dict(self.model.named_parameters())
        has_one = [named[e.name].grad is not None for e in manifest.parameters]
        gradient = manifest.gradient(self.model) * np.float32(count)
        rest = np.array([*has_one, loss * count], np.float32)
        return np.concatenate([gradient, rest])

    def _set_gradients(self, sums: Vector, num_samples: int) -> None:
        manifest, named = self.manifest, dict(self.model.named_parameters())
        gradient = sums[: manifest.num_parameters] / np.float32(num_samples)
        has_one = sums[manifest.num_parameters :]
        for i, (name, part) in enumerate(manifest.split(gradient).items()):
            parameter = named[name]
            found = torch.from_numpy(part.copy()).to(parameter.device)
            parameter.grad = found if has_one[i] else None

    def _seed_of(self, number: int) -> int:
        """Return the seed of the random numbers of this machine's part of a batch."""
        return mixed_seed(super()._seed_of(number), self.cluster.rank)
