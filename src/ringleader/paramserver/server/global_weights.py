"""The weights of the run on the server: sums updates and makes optimizer steps.

One thread at a time, and never the event loop: the work is proportional to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector

_PIECE = 1 << 16
"""Values per call of numpy, few enough to stay in the second-level cache."""

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """Settings of the optimizer that applies averaged differences of local steps."""

    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.rate <= 10 and 0 <= self.momentum < 1):
            text = f"not {self.rate:g} and {self.momentum:g}"
            limits = "rate must be above 0 up to 10 and momentum from 0 to below 1"
            raise ConfigError(f"outer optimizer: {limits}, {text}")
        if self.nesterov and not self.momentum:
            raise ConfigError("outer optimizer: nesterov needs a momentum, as in 0.9")

    def make(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer; with the defaults it is plain averaging."""
        return torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad],
            lr=self.rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
        )


class GlobalWeights:
    """The model, its optimizer, and the sum of updates for the next version."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, *, is_difference: bool
    ) -> None:
        self.model = model
        self.manifest = Manifest.of(model)
        self.optimizer = make_optimizer(model)
        self._sign = -1.0 if is_difference else 1.0
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._sum = np.zeros(self.manifest.num_parameters, np.float64)
        self._buffers = np.zeros(self.manifest.num_buffers, np.float64)
        self._samples = 0
        self._named = dict(model.named_parameters())

    def add(self, update: Update, samples: int) -> None:
        """Add an update to the sum, in float64 so that the order does not matter."""
        _add(self._sum, update.parameters, samples)
        _add(self._buffers, update.buffers, samples)
        self._samples += samples

    def apply(self, factor: float) -> None:
        """Make an optimizer step with the mean update and rates times ``factor``."""
        mean = _scaled(self._sum, self._sign / self._samples)
        for name, part in self.manifest.split(mean).items():
            self._named[name].grad = torch.from_numpy(part)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        # Below 1 the factor is the weight of a late update, which moves buffers less as
        # well. Above 1 it scales the learning rate of a round, not the buffers.
        self._move_buffers(min(factor, 1.0))
        self._sum.fill(0.0)
        self._buffers.fill(0.0)
        self._samples = 0

    def pack(self, codec: str = "none") -> memoryview:
        """Encode the weights as the body that workers download."""
        tensors = self.manifest.tensors(self.model)
        return bodies.pack_weights(self.manifest, tensors, codec)

    def _move_buffers(self, weight: float) -> None:
        if not self.manifest.num_buffers:
            return
        mean = _scaled(self._buffers, weight / self._samples)
        tensors = self.manifest.tensors(self.model)
        for name, part in self.manifest.split_buffers(mean).items():
            moved = torch.from_numpy(part)
            if not tensors[name].is_floating_point():
                moved = moved.round()
            tensors[name].add_(moved.to(tensors[name].dtype))


def warm_up() -> None:
    """Make an optimizer step on a dummy parameter.

    The first step makes torch import modules for seconds, which the first round should
    not wait for.
    """
    dummy = nn.Parameter(torch.zeros(1))
    dummy.grad = torch.zeros(1)
    torch.optim.SGD([dummy], lr=0.1).step()


def _add(total: NDArray[np.float64], vector: Vector, samples: int) -> None:
    for i in range(0, len(vector), _PIECE):
        piece = vector[i : i + _PIECE].astype(np.float64)
        piece *= samples
        total[i : i + _PIECE] += piece


def _scaled(total: NDArray[np.float64], factor: float) -> Vector:
    out = np.empty(len(total), np.float32)
    for i in range(0, len(total), _PIECE):
        np.multiply(
            total[i : i + _PIECE], factor, out[i : i + _PIECE], casting="same_kind"
        )
    return out
