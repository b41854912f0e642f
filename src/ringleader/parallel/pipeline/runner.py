"""Runs the micro-batches of a step through the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ringleader.errors import ConfigError
from ringleader.parallel.batch import Batch
from ringleader.parallel.batch_shares import agree_on_shares, sum_over_data
from ringleader.parallel.exchange_device import exchange_device
from ringleader.parallel.grid import Grid
from ringleader.parallel.measurement.boundary import Boundary
from ringleader.parallel.measurement.sample import Sample
from ringleader.parallel.microbatch_runner import scalar
from ringleader.parallel.pipeline.gradient_sums import (
    Gradients,
    TiedParameters,
    add_gradients,
    sum_gradients,
    take_gradients,
)
from ringleader.parallel.pipeline.torch_schedule import Stages

MAX_SCHEDULES = 8
"""Torch keeps buffers for each size of micro-batches; the oldest ones are dropped."""


class PipelineRunner:
    """The runner of ``pipeline``; see ``Runner``."""

    def __init__(
        self,
        model: nn.Module,
        stages: Stages,
        grid: Grid,
        sample: Sample,
        ends: tuple[Boundary, Boundary],
        tied: Sequence[TiedParameters],
    ) -> None:
        self.model = model
        self.norm_groups = (stages.group,)
        self._stages = stages
        self._grid = grid
        self._sample = sample
        self._ends = ends
        self._tied = tied
        self._weight = 1.0
        self._schedules: dict[tuple[int, int, bool], Any] = {}

    @property
    def norm_parameters(self) -> Sequence[nn.Parameter]:
        """See ``Runner``."""
        elsewhere = {
            p for tie in self._tied if not tie.is_first for p in tie.parameters
        }
        return [p for p in self.model.parameters() if p not in elsewhere]

    def run(self, batch: Batch, scale: float, step: int) -> Tensor:
        """See ``Runner.run``."""
        device = exchange_device(self._device.type, dist.get_backend_config())
        shares = agree_on_shares(self._grid, batch, step, device, self._check_batch)
        rows = shares.mean_rows  # fully_shard averages gradients, we add them up
        if self._grid.shard == 1:
            rows *= self._grid.data
        elif not shares.is_even:
            text = "pipeline+fsdp: all ranks need batches of the same size"
            raise ConfigError(f"step: {text}; for unlike ones, use pipeline+ddp")
        total = torch.zeros((), device=device)
        parts: list[Gradients] = []
        for begin, samples, count in self._pieces(batch.rows()):
            piece = slice(begin, begin + samples * count)
            schedule = self._schedule(samples, count, trains=True)
            if self._grid.shard > 1:  # fully_shard would not add up in a pipeline
                parts.append(take_gradients(self.model))
            self._weight = samples * scale / rows
            losses: list[Tensor] = []
            inputs = [x[piece] for x in batch.inputs] if self._is_first else []
            target = batch.target[piece] if self._is_last else None
            schedule.step(
                *inputs,
                target=target,
                losses=losses if self._is_last else None,
                return_outputs=False,
            )
            for loss in losses:
                total += loss.detach().to(device, torch.float32)
        for part in parts:
            add_gradients(part)
        self._add_gradients()
        return sum_over_data(self._grid, total / scale).wait() / self._grid.shard

    @torch.no_grad()
    def predict(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Tensor:
        """See ``Runner.predict``."""
        self._check(inputs, keywords)
        outputs = []
        rows = len(inputs[0])
        for begin, samples, count in self._pieces(rows):
            schedule = self._schedule(samples, count, trains=False)
            piece = slice(begin, begin + samples * count)
            mine = [x[piece] for x in inputs] if self._is_first else []
            outputs.append(schedule.step(*mine))
        (layout,) = self._ends[1].tensors
        wire = exchange_device(self._device.type, dist.get_backend_config())
        whole = torch.empty_like(layout.example(rows), device=wire, requires_grad=False)
        if self._is_last:
            whole.copy_(torch.cat(outputs))
        last = dist.get_global_rank(self._stages.group, self._stages.schedule.ranks - 1)
        dist.broadcast(whole, last, group=self._stages.group)
        return whole.to(self._device)

    def _pieces(self, rows: int) -> list[tuple[int, int, int]]:
        """Return first row, size and number of micro-batches of each run.

        Torch needs micro-batches of one size. What is left over is one more, smaller.
        """
        count = self._stages.schedule.microbatches
        samples, rest = divmod(rows, count)
        pieces = [(0, samples, count)] if samples else []
        return [*pieces, (rows - rest, rest, 1)] if rest else pieces

    def _schedule(self, samples: int, count: int, *, trains: bool) -> Any:  # noqa: ANN401 - torch's schedules have no common public base
        key = (samples, count, trains)
        if key in self._schedules:
            self._schedules[key] = self._schedules.pop(key)
        else:
            loss = self._weighted_loss if trains else None
            self._schedules[key] = self._stages.torch_schedule(samples, count, loss)
            while len(self._schedules) > MAX_SCHEDULES:
                del self._schedules[next(iter(self._schedules))]
        return self._schedules[key]

    def _weighted_loss(self, output: Any, target: Any) -> Tensor:  # noqa: ANN401
        """Return a micro-batch's part in the mean loss of all rows."""
        with self._sample.precision():
            return scalar(self._sample.loss(output, target)) * self._weight

    def _add_gradients(self) -> None:
        for tie in self._tied:
            sum_gradients(tie.parameters, tie.group)
        if self._grid.replicate > 1:
            sum_gradients([*self.model.parameters()], self._grid.data_group)

    def _check_batch(self, batch: Batch) -> None:
        self._check(batch.inputs, batch.keywords)
        if not isinstance(batch.target, Tensor):
            what = type(batch.target).__name__
            raise ConfigError(f"step: a pipeline needs a tensor as target, not {what}")

    def _check(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        if keywords:
            names = ", ".join(keywords)
            raise ConfigError(
                f"step: a pipeline takes no keywords ({names}); give tensors"
            )
        wanted = [(layout.shape, layout.dtype) for layout in self._ends[0].tensors]
        given = [
            (tuple(x.shape[1:]), x.dtype) if isinstance(x, Tensor) else type(x)
            for x in inputs
        ]
        if given != wanted:
            text = f"step: the batch has {given} per row, the example had {wanted}"
            raise ConfigError(f"{text}; a pipeline needs rows of one shape")

    @property
    def _device(self) -> torch.device:
        return self._sample.device

    @property
    def _is_first(self) -> bool:
        return self._stages.rank == 0

    @property
    def _is_last(self) -> bool:
        return self._stages.rank == self._stages.schedule.ranks - 1
