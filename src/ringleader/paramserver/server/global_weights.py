"""The weights of the run on the server: combines updates, makes optimizer steps.

One thread at a time, and never the event loop: the work is proportional to the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector
from ringleader.paramserver.server.aggregation import Aggregation, collect

MAX_MOVE = 10.0
"""Largest move of the weights by one update, as a multiple of their norm."""
_MIN_RMS = 0.01
"""Weights that are smaller than this on average, as zeros are, count as if they were
as large: else nothing could move them."""

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class GlobalWeights:
    """The model, its optimizer, and the updates for the next version."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        is_difference: bool,
        aggregation: Aggregation = Aggregation(),  # noqa: B008 - it is immutable
        max_move: float = MAX_MOVE,
    ) -> None:
        self.model = model
        self.manifest = Manifest.of(model)
        self.optimizer = make_optimizer(model)
        self._sign = -1.0 if is_difference else 1.0
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.aggregation = aggregation
        """How updates are combined, from the next round that has none yet."""
        self._max_move = max_move
        self._norm_limit: float | None = None
        self._round = collect(aggregation, self.manifest)
        self._named = dict(model.named_parameters())

    def add(self, worker: str, update: Update, samples: float) -> None:
        """Add an update to those of the next version."""
        self._round.add(worker, update, samples)

    def use(self, aggregation: Aggregation) -> None:
        """Combine updates in another way; a round that has begun ends in the old."""
        self.aggregation = aggregation
        if self._round.is_empty and self._round.aggregation != aggregation:
            self._round = collect(aggregation, self.manifest)

    def norm_limit(self) -> float:
        """Return the largest norm of an update's parameters.

        At the optimizer's rate it moves the weights by ``max_move`` times their norm.
        """
        if self._norm_limit is None:
            values = self.manifest.values(self.model)
            norm = math.sqrt(float(np.dot(values, values)))
            scale = max(norm, _MIN_RMS * math.sqrt(len(values)))
            rate = max(self._rates) / self._max_move if self._max_move else 0.0
            self._norm_limit = scale / rate if rate > 0 else math.inf
        return self._norm_limit

    def apply(self, factor: float) -> None:
        """Make an optimizer step on the combined update, at rates times ``factor``."""
        update = self._round.combine()
        parameters = update.parameters if self._sign > 0 else -update.parameters
        for name, part in self.manifest.split(parameters).items():
            self._named[name].grad = torch.from_numpy(part)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        # Below 1 the factor is the weight of a late update, which moves buffers less as
        # well. Above 1 it scales the learning rate of a round, not the buffers.
        self._move_buffers(update.buffers, min(factor, 1.0))
        self.use(self.aggregation)
        self._norm_limit = None

    def pack(self, codec: str = "none", frame: str = "zstd") -> memoryview:
        """Encode the weights as the body that workers download."""
        tensors = self.manifest.tensors(self.model)
        return bodies.pack_weights(self.manifest, tensors, codec, frame)

    def _move_buffers(self, mean: Vector, weight: float) -> None:
        if not self.manifest.num_buffers:
            return
        if weight != 1.0:
            mean = mean * np.float32(weight)
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
