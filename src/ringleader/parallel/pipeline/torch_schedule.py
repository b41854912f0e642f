"""Torch's schedules for the stages of a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from ringleader.parallel.measurement.boundary import Boundary
from ringleader.parallel.pipeline.stage_module import StageModule
from ringleader.parallel.plan.schedule import Schedule, ScheduleName


class Stages:
    """The stages of this rank, with the layouts of what they take and return."""

    def __init__(
        self,
        modules: Sequence[StageModule],
        boundaries: Sequence[tuple[Boundary, Boundary]],
        schedule: Schedule,
        rank: int,
        device: torch.device,
        group: dist.ProcessGroup,
    ) -> None:
        self.schedule = schedule
        self.rank = rank
        self.group = group
        self._modules = modules
        self._boundaries = boundaries
        self._device = device

    def torch_schedule(
        self,
        samples: int,
        microbatches: int,
        loss: Callable[[Any, Any], Tensor] | None,
    ) -> Any:  # noqa: ANN401 - torch's schedules have no common public base
        """Return torch's schedule for micro-batches of ``samples``.

        The layouts are given, so that torch neither runs the model to find them, which
        would change batch norm's statistics, nor sends them pickled.
        """
        stages = [
            PipelineStage(
                module,
                index,
                self.schedule.stages,
                self._device,
                input_args=before.examples(samples),
                output_args=after.examples(samples),
                group=self.group,
            )
            for index, module, (before, after) in zip(
                self.schedule.stages_of(self.rank),
                self._modules,
                self._boundaries,
                strict=True,
            )
        ]
        name = self.schedule.name
        if name is ScheduleName.INTERLEAVED:
            # Torch's type is a list of a private class.
            return ScheduleInterleaved1F1B(
                [*stages], microbatches, loss_fn=loss, scale_grads=False
            )
        # With fewer micro-batches than stages both keep the same number alive.
        is_1f1b = name is ScheduleName.ONE_F_ONE_B and microbatches >= len(self)
        kind = Schedule1F1B if is_1f1b else ScheduleGPipe
        return kind(stages[0], microbatches, loss_fn=loss, scale_grads=False)

    def __len__(self) -> int:
        """Return the number of stages of the whole pipeline."""
        return self.schedule.stages
