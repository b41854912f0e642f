"""How good trained weights are: on the samples that nobody trained with."""

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
from ringleader.paramserver.server.checkpoint import FOLDER, WEIGHTS
from ringleader.paramserver.tasks.device import to_device
from ringleader.paramserver.tasks.samples import Batch, batch_length
from ringleader.paramserver.tasks.task import Predictions, Task, default_predict

_BATCH = 256
_SLACK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Example:
    """One test sample, what it is, and what the model takes it for."""

    input: Tensor
    guessed: Tensor
    true: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came out."""

    num_samples: int
    loss: float
    accuracy: float | None
    """The share of right guesses, 0 to 1; None where there are no classes."""
    confusion: Tensor | None
    """Counts: a row for each true class, a column for each guess."""
    metrics: Mapping[str, float]
    examples: tuple[Example, ...]


def find_weights(place: Path, version: int | None) -> Path:
    """The file with the weights: ``place`` itself, or in the directory of a server."""
    if version is not None:
        place = place / FOLDER / f"{version:06d}" / WEIGHTS
        if not place.is_file():
            raise ConfigError(f"--version {version}: {_kept(place.parents[1])}")
    elif place.is_dir():
        place = place / WEIGHTS
    if not place.is_file():
        raise ConfigError(f"--weights: there is no {place}; has the server saved yet?")
    return place


def load_model(task: Task, file: Path) -> nn.Module:
    """A model of ``task`` with the weights in ``file``."""
    model = task.model()
    manifest = Manifest.of(model)
    try:
        if file.stat().st_size > manifest.num_bytes + _SLACK_BYTES:
            raise ConfigError(f"{file}: larger than any weights of task {task.name}")
        tensors = bodies.read_weights(manifest, file.read_bytes())
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
    """Loss, accuracy, confusion and metrics over the test samples."""
    model = model.to(device).eval()
    sums = _Sums()
    with torch.no_grad():
        for batch in task.samples("test").batches(_BATCH):
            moved = to_device(batch, device)
            sums.add(task, model, moved)
            if len(sums.examples) < num_examples and sums.last is not None:
                sums.examples += _examples(moved, sums.last)
    return sums.evaluation(task, num_examples)


def export(model: nn.Module, path: Path) -> None:
    """Write the state dict as torch does, for programs that know nothing of us."""
    new = path.with_name(f".{path.name}.new")
    tensors = {name: t.detach().cpu() for name, t in model.state_dict().items()}
    try:
        torch.save(tensors, new)
        os.replace(new, path)
    except (OSError, RuntimeError) as exc:
        raise ConfigError(f"{path}: cannot be written: {exc}") from exc


@dataclass(slots=True)
class _Sums:
    """What adds up over batches."""

    num_samples: int = 0
    loss: float = 0.0
    pairs: Counter[tuple[int, int]] = field(default_factory=Counter)
    metrics: dict[str, float] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    last: Predictions | None = None

    def add(self, task: Task, model: nn.Module, batch: Batch) -> None:
        """One more batch."""
        count = batch_length(batch)
        self.num_samples += count
        self.loss += float(task.loss(model, batch)) * count
        for name, value in (task.metrics or _nothing)(model, batch).items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value) * count
        self.last = _guesses(task, model, batch)
        if self.last is not None:
            guessed, true = (each.flatten().tolist() for each in self.last)
            self.pairs.update(zip(true, guessed, strict=True))

    def evaluation(self, task: Task, num_examples: int) -> Evaluation:
        """The means."""
        right = sum(n for (true, guessed), n in self.pairs.items() if true == guessed)
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
        for (true, guessed), count in self.pairs.items():
            table[true, guessed] = count
        return table


def _nothing(model: nn.Module, batch: Batch) -> Mapping[str, float]:
    return {}


def _guesses(task: Task, model: nn.Module, batch: Batch) -> Predictions | None:
    """What the model guesses; None if there are no classes to guess."""
    if task.predict is default_predict and not _has_labels(batch):
        return None
    guessed, true = task.predict(model, batch)
    if guessed.shape != true.shape:
        shapes = f"{tuple(guessed.shape)} guesses, {tuple(true.shape)} labels"
        raise ConfigError(f"task {task.name}: predict() gives {shapes}")
    return guessed.cpu(), true.cpu()


def _has_labels(batch: Batch) -> bool:
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    return is_pair and not (batch[1].is_floating_point() or batch[1].is_complex())


def _examples(batch: Batch, guesses: Predictions) -> list[Example]:
    inputs = batch[0] if isinstance(batch, tuple) else torch.zeros(len(guesses[1]), 0)
    return [
        Example(each.cpu(), guessed, true)
        for each, guessed, true in zip(inputs, *guesses, strict=True)
    ]


def _kept(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    found = ", ".join(str(int(n)) for n in names if n.isdigit())
    return f"not in {folder}; there are: {found or 'none'}"
