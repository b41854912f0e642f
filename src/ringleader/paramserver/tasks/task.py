"""A task: the model, samples and loss that are trained.

It is built in, or a Python file with these names at its top level:

    model() -> nn.Module          a new model
    dataset(split) -> samples     split is "train" or "test"; samples are a tuple of
                                  tensors, or a dataset with len() and [i]
    loss(model, batch) -> Tensor  the MEAN loss over the samples of the batch

and, where the defaults do not fit,

    optimizer(model) -> Optimizer             default: SGD, lr 0.05, momentum 0.9
    metrics(model, batch) -> {name: value}    means over the batch, for ``evaluate``
    predict(model, batch) -> (predicted, true)  default: argmax of model(inputs), labels
    classes = ["zero", "one", ...]            what labels are called
    batch_size = 32                           samples per batch of one worker

Server and workers each have the file; code is never sent. They compare fingerprints
part by part, so that an error can name the part that differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.tasks.batch_order import ORDER
from ringleader.paramserver.tasks.samples import Batch, Samples

Split = Literal["train", "test"]
Predictions = tuple[Tensor, Tensor]
"""The predicted and the true class of each sample; integers of equal shape."""

BATCH_SIZE = 32
_INITIAL_WEIGHTS_SEED = 0


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The files of a task: a file, a folder, or some files of a folder."""

    root: Path
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as server, workers and ``evaluate`` use it."""

    name: str
    code: str
    """The source code, for the fingerprint."""
    make_model: Callable[[], object]
    make_samples: Callable[[Split], Any]
    loss: Callable[[nn.Module, Batch], Tensor]
    make_optimizer: Callable[[nn.Module], object]
    predict: Callable[[nn.Module, Batch], Predictions]
    metrics: Callable[[nn.Module, Batch], Mapping[str, float]] | None = None
    classes: tuple[str, ...] = ()
    batch_size: int = BATCH_SIZE
    extra_parts: Mapping[str, str] = field(default_factory=dict)
    """Further parts of the fingerprint."""
    data: DataFiles | None = None
    """Files that the server sends to workers which lack them."""

    def model(self) -> nn.Module:
        """Build a new model; its initial weights are the same in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_INITIAL_WEIGHTS_SEED)
            made = self.make_model()
        if not isinstance(made, nn.Module):
            kind = type(made).__name__
            raise ConfigError(f"task {self.name}: model() returns {kind}, not a Module")
        return made

    def samples(self, split: Split) -> Samples:
        """Load the samples to train or to test with."""
        return Samples(
            self.make_samples(split), f"task {self.name}: dataset({split!r})"
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build a new optimizer for the model's trained parameters."""
        made = self.make_optimizer(model)
        if not isinstance(made, torch.optim.Optimizer):
            kind = type(made).__name__
            raise ConfigError(
                f"task {self.name}: optimizer() returns {kind}, not an Optimizer"
            )
        return made

    def fingerprint(self, samples: Samples | None = None) -> dict[str, str]:
        """Return what must be equal on both sides, part by part.

        ``samples`` are the training samples, if they are loaded already.
        """
        tensors = Manifest.of(self.model())
        count = f"{len(tensors.entries)} tensors, {tensors.num_parameters} values"
        return {
            "name": self.name,
            "code": _short(self.code.encode()),
            "model": f"{count}, {tensors.digest[:16]}",
            "data": (samples or self.samples("train")).digest(),
            "order": ORDER,
            **self.extra_parts,
        }


def default_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of a task that defines none."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=0.05, momentum=0.9)


def default_predict(model: nn.Module, batch: Batch) -> Predictions:
    """Predict the likeliest class of each sample, for batches of inputs and labels."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise ConfigError(
            "batches are not (inputs, labels): define predict() in the task"
        )
    inputs, labels = batch
    return model(inputs).argmax(dim=-1), labels


def _short(data: bytes) -> str:
    """Hash a text regardless of its line ends."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()[:16]
