"""Evaluates trained weights on the test samples of a task."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from ringleader.errors import ConfigError, ProtocolError
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.server.storage import checked_files
from ringleader.paramserver.server.storage.checked_files import DamagedFile
from ringleader.paramserver.server.storage.checkpoint import FOLDER, WEIGHTS
from ringleader.paramserver.tasks.device import to_device
from ringleader.paramserver.tasks.samples import Batch, batch_length
from ringleader.paramserver.tasks.task import Predictions, Task, default_predict

_BATCH_SIZE = 256
_SLACK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Example:
    """A test sample with its predicted and its true class."""

    input: Tensor
    predicted: Tensor
    true: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation."""

    num_samples: int
    loss: float
    accuracy: float | None
    """The share of right predictions, 0 to 1; None if the task has no classes."""
    confusion: Tensor | None
    """Counts, with a row for each true class and a column for each predicted one."""
    metrics: Mapping[str, float]
    examples: tuple[Example, ...]


def find_weights(path: Path, version: int | None) -> Path:
    """Return the file with the weights: ``path``, or one in the directory ``path``."""
    if version is not None:
        path = path / FOLDER / f"{version:06d}" / WEIGHTS
        if not path.is_file():
            raise ConfigError(f"--version {version}: {_list_versions(path.parents[1])}")
    elif path.is_dir():
        path = path / WEIGHTS
    if not path.is_file():
        text = f"--weights: there is no {path}"
        raise ConfigError(f"{text}; the server may not have written a checkpoint yet")
    return path


def load_model(task: Task, file: Path) -> nn.Module:
    """Build a model of ``task`` with the weights in ``file``."""
    model = task.model()
    manifest = Manifest.of(model)
    try:
        if file.stat().st_size > manifest.num_bytes + _SLACK_BYTES:
            raise ConfigError(f"{file}: larger than any weights of task {task.name}")
        body = checked_files.read_tensors(file, is_foreign=True)
        tensors = bodies.read_weights(manifest, body)
    except DamagedFile as exc:
        text = f"{exc}; choose another checkpoint with --version"
        raise ConfigError(text) from exc
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from exc
    except ProtocolError as exc:
        text = f"{file}: these are not weights of task {task.name}: {exc.text}"
        raise ConfigError(text) from exc
    manifest.load(model, tensors)
    return model


def evaluate(
    task: Task, model: nn.Module, device: torch.device, *, num_examples: int = 0
) -> Evaluation:
    """Compute loss, accuracy, confusion and metrics over the test samples."""
    model = model.to(device).eval()
    sums = _Sums()
    with torch.no_grad():
        for batch in task.samples("test").batches(_BATCH_SIZE):
            moved = to_device(batch, device)
            sums.add(task, model, moved)
            if len(sums.examples) < num_examples and sums.last is not None:
                sums.examples += _examples(moved, sums.last)
    return sums.evaluation(task, num_examples)


def export(model: nn.Module, path: Path) -> None:
    """Write the state dict for ``torch.load``."""
    new = path.with_name(f".{path.name}.new")
    tensors = {name: t.detach().cpu() for name, t in model.state_dict().items()}
    try:
        torch.save(tensors, new)
        os.replace(new, path)
    except (OSError, RuntimeError) as exc:
        raise ConfigError(f"{path}: cannot be written: {exc}") from exc


@dataclass(slots=True)
class _Sums:
    """Sums over batches."""

    num_samples: int = 0
    loss: float = 0.0
    pairs: Counter[tuple[int, int]] = field(default_factory=Counter)
    metrics: dict[str, float] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    last: Predictions | None = None

    def add(self, task: Task, model: nn.Module, batch: Batch) -> None:
        """Add a batch."""
        count = batch_length(batch)
        self.num_samples += count
        self.loss += float(task.loss(model, batch)) * count
        for name, value in (task.metrics or _nothing)(model, batch).items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value) * count
        self.last = _predictions(task, model, batch)
        if self.last is not None:
            predicted, true = (each.flatten().tolist() for each in self.last)
            self.pairs.update(zip(true, predicted, strict=True))

    def evaluation(self, task: Task, num_examples: int) -> Evaluation:
        """Build the result from the sums."""
        right = sum(
            n for (true, predicted), n in self.pairs.items() if true == predicted
        )
        total = self.pairs.total()
        return Evaluation(
            num_samples=self.num_samples,
            loss=self.loss / self.num_samples,
            accuracy=right / total if total else None,
            confusion=self._confusion(len(task.classes)) if total else None,
            metrics={n: value / self.num_samples for n, value in self.metrics.items()},
            examples=tuple(self.examples[:num_examples]),
        )

    def _confusion(self, num_classes: int) -> Tensor:
        size = max(num_classes, 1 + max(max(pair) for pair in self.pairs))
        table = torch.zeros(size, size, dtype=torch.int64)
        for (true, predicted), count in self.pairs.items():
            table[true, predicted] = count
        return table


def _nothing(model: nn.Module, batch: Batch) -> Mapping[str, float]:
    return {}


def _predictions(task: Task, model: nn.Module, batch: Batch) -> Predictions | None:
    """Return the predictions of the model; None if the task has no classes."""
    if task.predict is default_predict and not _has_labels(batch):
        return None
    predicted, true = task.predict(model, batch)
    if predicted.shape != true.shape:
        shapes = f"{tuple(predicted.shape)} predictions, {tuple(true.shape)} labels"
        raise ConfigError(f"task {task.name}: predict() returns {shapes}")
    return predicted.cpu(), true.cpu()


def _has_labels(batch: Batch) -> bool:
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    return is_pair and not (batch[1].is_floating_point() or batch[1].is_complex())


def _examples(batch: Batch, predictions: Predictions) -> list[Example]:
    inputs = (
        batch[0] if isinstance(batch, tuple) else torch.zeros(len(predictions[1]), 0)
    )
    return [
        Example(each.cpu(), predicted, true)
        for each, predicted, true in zip(inputs, *predictions, strict=True)
    ]


def _list_versions(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    found = ", ".join(str(int(n)) for n in names if n.isdigit())
    return f"not in {folder}; available: {found or 'none'}"
