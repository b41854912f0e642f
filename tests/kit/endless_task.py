"""A float64 task without an end for elastic runs, and its values by numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from ringleader.data.permutation import Permutation

SAMPLES, INPUTS, HIDDEN, CLASSES = 1009, 13, 17, 5
GLOBAL_BATCH, MICRO_BATCH = (
    47,
    4,
)
"""The last quantum of a step has 3 samples, the last step of an epoch 22."""
LEARNING_RATE, MOMENTUM, DECAY, SEED = 0.05, 0.9, 1e-4, 11

Array = NDArray[np.float64]


class Points(Dataset[Any]):
    """Random points with a label each."""

    def __init__(self) -> None:
        random = np.random.default_rng(SEED)
        self.inputs: Array = random.normal(size=(SAMPLES, INPUTS))
        self.labels = (self.inputs[:, :CLASSES] ** 2).argmax(1)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.inputs[index]), int(self.labels[index])


def first_weights() -> list[Array]:
    """Return the parameters that a run begins with."""
    random = np.random.default_rng(SEED + 1)
    shapes = [(HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]
    return [random.normal(size=shape) * 0.3 for shape in shapes]


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model with its first weights, and its optimizer."""
    model = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
    ).double()
    for parameter, value in zip(model.parameters(), first_weights(), strict=True):
        parameter.data.copy_(torch.from_numpy(value))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=DECAY
    )
    return model, optimizer


def flat(model: nn.Module) -> Array:
    """Return all parameters in one array."""
    found: Array = np.concatenate(
        [p.detach().numpy().ravel() for p in model.parameters()]
    )
    return found


class Reference:
    """The run as one process without failures, step by step, without torch."""

    def __init__(self) -> None:
        self._data = Points()
        self._weights = first_weights()
        self._buffers: list[Array] | None = None
        self._epoch = self._cursor = 0
        self._states = [self._flat()]

    def parameters(self, version: int) -> Array:
        """Return all parameters after ``version`` steps."""
        while len(self._states) <= version:
            self._step()
            self._states.append(self._flat())
        return self._states[version]

    def _flat(self) -> Array:
        found: Array = np.concatenate([w.ravel() for w in self._weights])
        return found

    def _step(self) -> None:
        end = min(SAMPLES, self._cursor + GLOBAL_BATCH)
        order = Permutation(SAMPLES, SEED, self._epoch)
        rows = order(np.arange(self._cursor, end, dtype=np.int64))
        self._epoch, self._cursor = (
            (self._epoch + 1, 0) if end == SAMPLES else (self._epoch, end)
        )
        gradients = self._gradients(self._data.inputs[rows], self._data.labels[rows])
        decayed = [g + DECAY * w for g, w in zip(gradients, self._weights, strict=True)]
        if self._buffers is None:
            self._buffers = decayed
        else:
            pairs = zip(self._buffers, decayed, strict=True)
            self._buffers = [MOMENTUM * buffer + g for buffer, g in pairs]
        pairs = zip(self._weights, self._buffers, strict=True)
        self._weights = [w - LEARNING_RATE * buffer for w, buffer in pairs]

    def _gradients(self, x: Array, labels: NDArray[np.int64]) -> list[Array]:
        """Return the gradient of the mean cross entropy."""
        w1, b1, w2, b2 = self._weights
        hidden = np.tanh(x @ w1.T + b1)
        scores = hidden @ w2.T + b2
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1
        chances /= len(labels)
        back = (chances @ w2) * (1 - hidden**2)
        return [back.T @ x, back.sum(0), chances.T @ hidden, chances.sum(0)]
