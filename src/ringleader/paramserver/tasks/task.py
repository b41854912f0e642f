"""What is trained: a model, samples and a loss, from a Python file or built in.

A task is a Python file with these names at its top level:

    model() -> nn.Module          a new model
    dataset(split) -> samples     split is "train" or "test"; samples are a tuple of
                                  tensors, or a dataset with len() and [i]
    loss(model, batch) -> Tensor  the MEAN loss over the samples of the batch

and, where the defaults do not fit,

    optimizer(model) -> Optimizer             default: SGD, lr 0.05, momentum 0.9
    metrics(model, batch) -> {name: value}    means over the batch, for ``evaluate``
    predict(model, batch) -> (guessed, true)  default: argmax of model(inputs), labels
    classes = ["zero", "one", ...]            what labels are called
    batch_size = 32                           samples per batch of one worker

Server and workers each have the file; code never travels. They compare fingerprints,
part by part, so that a difference has a name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.tasks.batch_order import ORDER
from ringleader.paramserver.tasks.samples import Batch, Samples

Split = Literal["train", "test"]
Predictions = tuple[Tensor, Tensor]
"""What the model says of each sample, and what is true; integers of equal shape."""

BATCH_SIZE = 32
_FIRST_WEIGHTS_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that server, workers and ``evaluate`` know of what is trained."""

    name: str
    code: str
    """The source, as it is compared."""
    make_model: Callable[[], object]
    make_samples: Callable[[Split], Any]
    loss: Callable[[nn.Module, Batch], Tensor]
    make_optimizer: Callable[[nn.Module], object]
    predict: Callable[[nn.Module, Batch], Predictions]
    metrics: Callable[[nn.Module, Batch], Mapping[str, float]] | None = None
    classes: tuple[str, ...] = ()
    batch_size: int = BATCH_SIZE
    facts: Mapping[str, str] = field(default_factory=dict)
    """More parts of the fingerprint."""

    def model(self) -> nn.Module:
        """A new model; its first weights are the same in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_FIRST_WEIGHTS_SEED)
            made = self.make_model()
        if not isinstance(made, nn.Module):
            kind = type(made).__name__
            raise ConfigError(f"task {self.name}: model() gives {kind}, not a Module")
        return made

    def samples(self, split: Split) -> Samples:
        """The samples to train or to test with."""
        return Samples(
            self.make_samples(split), f"task {self.name}: dataset({split!r})"
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """A new optimizer of the model's trained parameters."""
        made = self.make_optimizer(model)
        if not isinstance(made, torch.optim.Optimizer):
            kind = type(made).__name__
            raise ConfigError(f"task {self.name}: optimizer() gives {kind}")
        return made

    def fingerprint(self, samples: Samples | None = None) -> dict[str, str]:
        """What must be equal on both sides, part by part.

        ``samples`` are those to train with, if they are loaded already.
        """
        tensors = Manifest.of(self.model())
        count = f"{len(tensors.entries)} tensors, {tensors.num_parameters} values"
        return {
            "name": self.name,
            "code": _short(self.code.encode()),
            "model": f"{count}, {tensors.digest[:16]}",
            "data": (samples or self.samples("train")).digest(),
            "order": ORDER,
            **self.facts,
        }


def default_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """What a task gets that names no optimizer."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=0.05, momentum=0.9)


def default_predict(model: nn.Module, batch: Batch) -> Predictions:
    """The most likely class of each sample, for batches of inputs and labels."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise ConfigError("batches are not (inputs, labels): give the task a predict()")
    inputs, labels = batch
    return model(inputs).argmax(dim=-1), labels


def _short(data: bytes) -> str:
    """A hash that does not see which system wrote the line ends."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()[:16]
