"""Trains a small classifier of handwritten digits for ``ringleader demo``.

Every rank iterates over the same global batches and works on its own slice of each. It
divides its loss by the size of the whole batch, so that the sum over ranks is the mean
over the batch, also if the slices differ in length. One all_reduce per step sums the
gradients and, as the last element, the loss. The reference is the same program without
a group: one slice, no communication.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from ringleader.groups.group import Group
from ringleader.paramserver.tasks.digits import stored
from ringleader.settings.checkpoint import checkpoint_folder

_HIDDEN = 64
_TRAINING_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Hyperparameters, the same on all ranks and in the reference run."""

    epochs: int = 30
    """Passes over the training digits; 30 reach an accuracy of 98 %."""

    batch: int = 96
    """Digits per step over all ranks."""

    learning_rate: float = 0.1
    momentum: float = 0.9

    seed: int = 7
    """Determines the split, the initial parameters and the order of the digits."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Images as rows of 64 numbers between 0 and 1, and their labels."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Model and statistics of one rank after training."""

    begun_after: int
    """Epochs of the checkpoint that it continued, or 0."""
    parameters: Tensor
    loss: float
    accuracy: float
    steps: int
    step_bytes: int
    seconds: float

    def digest(self) -> str:
        """Return a SHA-256 of the parameters, equal only if all bits are."""
        return hashlib.sha256(self.parameters.numpy().tobytes()).hexdigest()


OnEpoch = Callable[[int, float], None]
"""Called with the number of completed epochs and the mean loss of the last one."""


def load_digits(config: TrainingConfig) -> Digits:
    """Load the digits that are part of the package."""
    images, labels = stored()
    order = _shuffled(len(labels), config.seed)
    train, test = order.tensor_split([int(len(labels) * _TRAINING_SHARE)])
    images = images.flatten(1)
    return Digits(images[train], labels[train], images[test], labels[test])


def train(
    config: TrainingConfig,
    digits: Digits,
    group: Group | None,
    on_epoch: OnEpoch,
    until: int | None = None,
) -> TrainingResult:
    """Train with the other ranks of ``group``, or alone when it is None.

    With ``until``, it stops after that epoch and saves a checkpoint. The next call
    with a group continues there; RINGLEADER_CHECKPOINT is the folder.
    """
    trainer = _Trainer(config, digits, group)
    done = trainer.resume()
    steps, loss, start_s = 0, 0.0, time.perf_counter()
    for epoch in range(done, until or config.epochs):
        order = _shuffled(len(digits.train_labels), config.seed + 1 + epoch)
        cuts = list(range(config.batch, len(order), config.batch))
        losses = [trainer.learn(batch) for batch in order.tensor_split(cuts)]
        steps += len(losses)
        loss = sum(losses) / len(losses)
        on_epoch(epoch + 1, loss)
    seconds = time.perf_counter() - start_s
    if until is not None:
        trainer.save(until)
    return TrainingResult(
        begun_after=done,
        parameters=torch.cat([p.detach().flatten() for p in trainer.parameters]),
        loss=loss,
        accuracy=trainer.accuracy(),
        steps=steps,
        step_bytes=trainer.step_bytes,
        seconds=seconds,
    )


class _Trainer:
    """A model whose gradients are views of one flat tensor.

    Backward writes directly into the tensor that all_reduce sums, without a copy.
    """

    def __init__(
        self, config: TrainingConfig, digits: Digits, group: Group | None
    ) -> None:
        self._digits = digits
        self._group = group
        self._model = _model(config.seed)
        self.parameters = list(self._model.parameters())
        self._optimizer = torch.optim.SGD(
            self.parameters, lr=config.learning_rate, momentum=config.momentum
        )
        ends = list(accumulate(p.numel() for p in self.parameters))
        self._step = torch.zeros(ends[-1] + 1)  # all gradients, then the loss
        *pieces, _ = self._step.tensor_split(ends)
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)

    def resume(self) -> int:
        """Load the newest checkpoint of this run; return its epochs, 0 without one."""
        if self._group is None or not checkpoint_folder():
            return 0
        from ringleader import checkpoint  # takes seconds

        found = checkpoint.resume(group=self._group)
        return found.load(self._model, self._optimizer).step if found else 0

    def save(self, epoch: int) -> None:
        """Save a checkpoint, on this machine and, as a copy, on the next."""
        from ringleader import checkpoint

        checkpoint.save(
            checkpoint_folder(), epoch, self._model, self._optimizer, group=self._group
        )

    @property
    def step_bytes(self) -> int:
        """Number of bytes that every rank passes to all_reduce in one step."""
        return self._step.numel() * self._step.element_size()

    def learn(self, batch: Tensor) -> float:
        """Train one step on ``batch`` with the other ranks; return its mean loss."""
        rank, size = (self._group.rank, self._group.size) if self._group else (0, 1)
        self._step.zero_()
        self._add_gradients(batch.tensor_split(size)[rank], len(batch))
        if self._group is not None:
            self._group.all_reduce(self._step)
        self._optimizer.step()
        return float(self._step[-1])

    def accuracy(self) -> float:
        """Share of test digits that the model classifies correctly."""
        with torch.no_grad():
            guesses = self._model(self._digits.test_images).argmax(dim=1)
        return float((guesses == self._digits.test_labels).double().mean())

    def _add_gradients(self, mine: Tensor, batch: int) -> None:
        if not len(mine):
            return  # more ranks than digits in the last batch
        guesses = self._model(self._digits.train_images[mine])
        labels = self._digits.train_labels[mine]
        loss = functional.cross_entropy(guesses, labels, reduction="sum") / batch
        loss.backward()  # type: ignore[no-untyped-call]
        self._step[-1] = loss.detach()


def _model(seed: int) -> nn.Module:
    """Return a model with the same initial parameters on every rank.

    It uses its own generator: the global one is shared by all threads, and ranks may
    be threads of one process.
    """
    model = nn.Sequential(nn.Linear(64, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, 10))
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.zeros_(parameter)
        else:
            nn.init.xavier_uniform_(parameter, generator=generator)
    return model


def _shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
