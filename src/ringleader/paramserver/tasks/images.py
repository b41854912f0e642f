"""The built-in task ``images``: IDX files like MNIST's, or a folder per class.

DIR/train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz], t10k-...  (MNIST's)
DIR/train/CLASS/*.png, DIR/test/CLASS/*.png
DIR/CLASS/*.png                           every fifth image is for the test
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ringleader.errors import ConfigError
from ringleader.paramserver.tasks import idx
from ringleader.paramserver.tasks.samples import Batch
from ringleader.paramserver.tasks.task import DataFiles, Split, Task, default_predict

Pixels = NDArray[np.uint8]

_SIDE = 28
"""Images from folders become grey squares with sides of this length, like MNIST's."""
_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}
_TEST_EVERY = 5
_SMALLEST_SIDE = 8


def task(directory: Path) -> Task:
    """Build the task for the images in ``directory``."""
    if not directory.is_dir():
        raise ConfigError(f"task images: {directory} is not a directory")
    read, classes = _reader(directory)
    cached: Callable[[Split], tuple[Tensor, Tensor]] = lru_cache(maxsize=2)(read)
    images, _ = cached("train")
    height, width = images.shape[-2:]
    if min(height, width) < _SMALLEST_SIDE:
        size = f"{height} by {width} pixels; {_SMALLEST_SIDE} is the least"
        raise ConfigError(f"task images: images of {size}")
    return Task(
        name="images",
        code=Path(__file__).read_text(encoding="utf-8"),
        make_model=lambda: model(height, width, len(classes)),
        make_samples=cached,
        loss=loss,
        make_optimizer=optimizer,
        predict=default_predict,
        classes=classes,
        batch_size=64,
        extra_parts={"classes": f"{len(classes)}, {_digest(classes)}"},
        data=DataFiles(directory),
    )


def model(height: int, width: int, num_classes: int) -> nn.Module:
    """Build two convolutions and two linear layers."""
    flat = 32 * (height // 4) * (width // 4)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross entropy."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Build SGD with a rate for one worker; the server scales it with their number."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)


Reader = Callable[[Split], tuple[Tensor, Tensor]]


def _reader(directory: Path) -> tuple[Reader, tuple[str, ...]]:
    """Return a function that reads a split, and the names of the classes."""
    if idx.has_idx_files(directory):
        count = int(idx.labels(directory, "train").max()) + 1
        names = tuple(str(number) for number in range(count))
        return lambda split: _from_idx(directory, split, count), names
    has_splits = (directory / "train").is_dir()
    names = _folders(directory / "train" if has_splits else directory)
    if len(names) < 2:
        text = "neither IDX files nor a folder of images per class"
        raise ConfigError(f"task images: {directory} holds {text}")
    return lambda split: _from_folders(directory, split, names), names


def _from_idx(directory: Path, split: Split, classes: int) -> tuple[Tensor, Tensor]:
    images, labels = idx.images(directory, split), idx.labels(directory, split)
    if len(images) != len(labels):
        both = f"{len(images)} images and {len(labels)} labels"
        raise ConfigError(f"task images: {directory} has {both} for {split}")
    if len(labels) and int(labels.max()) >= classes:
        text = f"label {labels.max()} in {split}, none above {classes - 1} in train"
        raise ConfigError(f"task images: {directory} has {text}")
    return _normalized(images), torch.from_numpy(labels.astype(np.int64))


def _from_folders(
    directory: Path, split: Split, names: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    has_splits = (directory / "train").is_dir()
    root = directory / split if has_splits else directory
    images: list[Pixels] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        for number, path in enumerate(_image_files(root / name)):
            is_test = number % _TEST_EVERY == _TEST_EVERY - 1
            if has_splits or is_test == (split == "test"):
                images.append(_read_image(path))
                labels.append(label)
    if not images:
        raise ConfigError(f"task images: no image for {split} in {root}")
    return _normalized(np.stack(images)), torch.tensor(labels)


def _folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in root.iterdir() if _image_files(p)))


def _image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in _ENDINGS)


def _read_image(path: Path) -> Pixels:
    try:
        from PIL import Image
    except ImportError as exc:
        text = "image files need Pillow: pip install 'ringleader[internet]'"
        raise ConfigError(f"task images: {text}") from exc
    try:
        with Image.open(path) as image:
            grey = image.convert("L").resize((_SIDE, _SIDE))
    except (OSError, Image.DecompressionBombError) as exc:
        raise ConfigError(f"task images: cannot read {path}: {exc}") from exc
    return np.asarray(grey, dtype=np.uint8)


def _normalized(images: Pixels) -> Tensor:
    """Normalize with MNIST's statistics to (samples, 1, height, width)."""
    scaled = torch.tensor(images).unsqueeze(1).float() / 255
    return (scaled - 0.1307) / 0.3081


def _digest(names: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
