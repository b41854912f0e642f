"""The built-in task ``digits``: 1797 images of handwritten digits, 8 by 8 pixels.

They are the test half of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
C. Kaynak (UCI Machine Learning Repository, CC BY 4.0).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ringleader.paramserver.tasks.samples import Batch
from ringleader.paramserver.tasks.task import Split, Task, default_predict

_FILE = Path(__file__).with_name("digits.npz")
_NUM_TEST = 360
_DARKEST = 16
_MEAN, _SPREAD = 0.3, 0.5
_BATCH_SIZE = 128
"""Two workers train on each digit ten times in 60 rounds, enough for 97 %."""


def task() -> Task:
    """Build the task."""
    return Task(
        name="digits",
        code=Path(__file__).read_text(encoding="utf-8"),
        make_model=model,
        make_samples=dataset,
        loss=loss,
        make_optimizer=optimizer,
        predict=default_predict,
        classes=tuple("0123456789"),
        batch_size=_BATCH_SIZE,
    )


def model() -> nn.Module:
    """Build one convolution and one linear layer: 5450 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def dataset(split: Split) -> tuple[Tensor, Tensor]:
    """Load images and labels; the split is the same on every machine."""
    images, labels = stored()
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))
    chosen = order[:_NUM_TEST] if split == "test" else order[_NUM_TEST:]
    return (images[chosen].unsqueeze(1) - _MEAN) / _SPREAD, labels[chosen]


def stored() -> tuple[Tensor, Tensor]:
    """Load all images, as 8 by 8 numbers from 0 to 1, and their labels."""
    with np.load(_FILE, allow_pickle=False) as found:
        images = torch.from_numpy(found["images"]).float() / _DARKEST
        return images, torch.from_numpy(found["labels"]).long()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross entropy."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Build SGD with a rate for one worker; the server scales it with their number."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
