"""``Trainer``: a model, its optimizer and one call per step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.errors import ConfigError
from ringleader.parallel.batch import Batch
from ringleader.parallel.gradients import scale_gradients, total_norm
from ringleader.parallel.grid import Grid
from ringleader.parallel.loss_scale import LossScale
from ringleader.parallel.options import Options
from ringleader.parallel.runner import Runner

_EPSILON = 1e-6
"""Added to the norm before dividing, as in torch.nn.utils.clip_grad_norm_."""


class Trainer:
    """What ``parallelize`` returns.

    ``model`` and ``optimizer`` are torch's own, for evaluation, schedulers and
    ``ringleader.checkpoint``. ``steps`` counts the steps, ``grad_norm`` is the norm of
    the last gradient before clipping (None without ``clip`` or fp16). ``data_rank`` and
    ``data_size`` say which share of the data this rank computes. ``shares`` are the
    parts of a batch that suit the machines, one per data rank, if they were measured
    with an example.
    """

    def __init__(
        self, runner: Runner, optimizer: Optimizer, options: Options, grid: Grid
    ) -> None:
        self.optimizer = optimizer
        self.steps = 0
        self.grad_norm: float | None = None
        self.shares: list[float] | None = None
        self._runner = runner
        self._options = options
        self._grid = grid
        self._scale = LossScale() if options.precision == "fp16" else None

    @property
    def model(self) -> nn.Module:
        """The model as this rank holds it."""
        return self._runner.model

    @property
    def data_rank(self) -> int:
        """The share of the data that this rank computes, from 0 to ``data_size``."""
        return self._grid.data_rank(self._grid.rank)

    @property
    def data_size(self) -> int:
        """The number of shares into which the data is divided."""
        return self._grid.data

    def step(self, *batch: Any, **keywords: Any) -> Tensor:  # noqa: ANN401  # as nn.Module
        """Train on one batch; return the mean loss over the batches of all ranks.

        With a loss, the last argument is its target and the others are the model's:
        ``step(x, y)`` minimizes ``loss(model(x), y)``. Without one, all arguments are
        the model's, which returns the loss. One call is one step of the optimizer, in
        ``microbatches`` parts. All ranks must call it.
        """
        self.optimizer.zero_grad()
        scale = self._scale.value if self._scale else 1.0
        loss = self._runner.run(self._batch(batch, keywords), scale, self.steps)
        if self._prepare_gradients(scale):
            self.optimizer.step()
        self.steps += 1
        return loss

    def predict(self, *inputs: Any, **keywords: Any) -> Any:  # noqa: ANN401  # as nn.Module
        """Return the model's output for a batch, without gradients.

        All ranks must call it; those with the same ``data_rank`` with the same batch.
        For evaluation, call ``trainer.model.eval()`` before, ``train()`` afterwards.
        """
        return self._runner.predict(inputs, keywords)

    def state_dict(self) -> dict[str, Any]:
        """Return what is in neither model nor optimizer, for checkpoints."""
        scale = self._scale or LossScale()
        return {
            "steps": self.steps,
            "loss_scale": scale.value,
            "good_steps": scale.good_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.steps = int(state["steps"])
        if self._scale:
            self._scale.value = float(state["loss_scale"])
            self._scale.good_steps = int(state["good_steps"])

    def _batch(self, batch: tuple[Any, ...], keywords: dict[str, Any]) -> Batch:
        if self._options.loss is None:
            return Batch(batch, keywords)
        if not batch:
            raise ConfigError("step: give the model's arguments and then the target")
        return Batch(batch[:-1], keywords, batch[-1])

    def _prepare_gradients(self, scale: float) -> bool:
        """Undo the loss scale and clip; return False if the step must be skipped."""
        clip = self._options.clip
        if clip is None and self._scale is None:
            return True
        parameters = list(self.model.parameters())
        counted = self._runner.norm_parameters
        norm = float(total_norm(counted, self._runner.norm_groups)) / scale
        self.grad_norm = norm
        if self._scale is not None:
            if not math.isfinite(norm):
                self._scale.overflowed()
                return False
            self._scale.succeeded()
        factor = 1.0 / scale
        if clip is not None:
            factor *= min(1.0, clip / (norm + _EPSILON))
        if factor != 1.0:
            scale_gradients(parameters, factor)
        return True
