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
GLOBAL_BATCH, MICRO_BATCH = 47, 4
"""The last quantum of a step has 3 samples, the last step of an epoch 22."""
KEPT_STATES = 5000
"""Of a reference: no member is further behind."""
LEARNING_RATE, MOMENTUM, DECAY, SEED = 0.05, 0.9, 3e-3, 11
"""The decay keeps rounding where it is: 4e-15 after 60,000 steps. With 1e-4 it grows to
1e-10 by step 11,000 and beyond any limit by 13,000, without a single failure."""

Array = NDArray[np.float64]


class Points(Dataset[Any]):
    """Random points with a label each."""

    def __init__(self, dtype: str = "float64") -> None:
        random = np.random.default_rng(SEED)
        values = random.normal(size=(SAMPLES, INPUTS))
        self.inputs: Array = values.astype(dtype)
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


def make_model(dtype: str = "float64") -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model with its first weights, and its optimizer."""
    model = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
    ).to(getattr(torch, dtype))
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


class Order:
    """The samples of each step, by their indices."""

    def __init__(self) -> None:
        self._epoch = self._cursor = 0

    def next(self) -> NDArray[np.int64]:
        """Return the samples of the next step."""
        end = min(SAMPLES, self._cursor + GLOBAL_BATCH)
        order = Permutation(SAMPLES, SEED, self._epoch)
        rows = order(np.arange(self._cursor, end, dtype=np.int64))
        self._epoch, self._cursor = (
            (self._epoch + 1, 0) if end == SAMPLES else (self._epoch, end)
        )
        return rows


class Reference:
    """The run as one process without failures, step by step, without torch."""

    dtype = "float64"
    tolerance = 1e-9

    def __init__(self) -> None:
        self._data = Points()
        self._weights = first_weights()
        self._buffers: list[Array] | None = None
        self._order = Order()
        self._version = 0
        self._states = {0: self._flat()}

    def difference(self, version: int, weights: bytes) -> float:
        """Return the largest difference of parameters after ``version`` steps."""
        return float(np.abs(np.frombuffer(weights) - self.parameters(version)).max())

    def parameters(self, version: int) -> Array:
        """Return all parameters after ``version`` steps."""
        while self._version < version:
            self._step()
            self._version += 1
            self._states[self._version] = self._flat()
            self._states.pop(self._version - KEPT_STATES, None)
        return self._states[version]

    def _flat(self) -> Array:
        found: Array = np.concatenate([w.ravel() for w in self._weights])
        return found

    def _step(self) -> None:
        rows = self._order.next()
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


class LossReference:
    """The run in float32 as one process without failures, in plain torch."""

    dtype = "float32"
    tolerance = 1e-3

    def __init__(self) -> None:
        data = Points(self.dtype)
        self._inputs = torch.from_numpy(data.inputs)
        self._labels = torch.from_numpy(data.labels)
        self._model, self._optimizer = make_model(self.dtype)
        self._other, _ = make_model(self.dtype)
        self._order = Order()
        self.losses = [self._loss(self._model)]
        """Mean over all samples, after each step."""
        self.other_losses: dict[int, float] = {}
        """The same of the run that is compared."""

    def difference(self, version: int, weights: bytes) -> float:
        """Return the difference of the loss over all samples after some steps."""
        while len(self.losses) <= version:
            self._step()
            self.losses.append(self._loss(self._model))
        values = torch.frombuffer(bytearray(weights), dtype=torch.float32)
        nn.utils.vector_to_parameters(values, self._other.parameters())
        loss = self.other_losses[version] = self._loss(self._other)
        return abs(loss - self.losses[version])

    @torch.no_grad()
    def _loss(self, model: nn.Module) -> float:
        loss = nn.functional.cross_entropy(model(self._inputs), self._labels)
        return float(loss)

    def _step(self) -> None:
        rows = torch.from_numpy(self._order.next())
        found = self._model(self._inputs[rows])
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(found, self._labels[rows]).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
