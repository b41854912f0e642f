"""Pipelines: each rank holds a stage, or several, and passes activations on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from tests.kit.reference import backward, check, check_state, net, tensor

ROWS_PER_MICROBATCH = 3
WIDTH = 6


def parts(count: int) -> list[nn.Sequential]:
    """The stages of the whole model, in float64."""
    return [
        nn.Sequential(*net(WIDTH, WIDTH, seed=10 + 5 * i), nn.Tanh())
        for i in range(count)
    ]


def stage(index: int, count: int) -> PipelineStage:
    return PipelineStage(parts(count)[index].float(), index, count, torch.device("cpu"))


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {n: cast(Tensor, p.grad) for n, p in module.named_parameters()}


def check_pipeline(
    rank: int, size: int, make: Callable[[int], Any], stages: list[PipelineStage]
) -> None:
    """Two steps through a schedule: outputs, losses and gradients are the model's."""
    num_microbatches = 2 * size
    schedule = make(num_microbatches)
    count = stages[0].num_stages
    alone = nn.Sequential(*parts(count))
    for step in range(2):
        x = tensor(ROWS_PER_MICROBATCH * num_microbatches, WIDTH, seed=step)
        y = tensor(ROWS_PER_MICROBATCH * num_microbatches, WIDTH, seed=50 + step)
        for module in (alone, *(each.submod for each in stages)):
            module.zero_grad()
        losses: list[Tensor] = []
        args = [x.float()] if rank == 0 else []
        wanted = {"target": y.float(), "losses": losses} if rank == size - 1 else {}
        out = schedule.step(*args, **wanted)
        expected = alone(x)
        backward(F.mse_loss(expected, y))
        if rank == size - 1:
            check(out, expected, what="output")
            check(torch.stack(losses).mean(), F.mse_loss(expected, y), what="loss")
    for each in stages:
        part = alone[each.stage_index]
        check_state(
            gradients(each.submod),
            gradients(part),
        )


def pipeline_gpipe(rank: int, size: int) -> None:
    mine = stage(rank, size)
    check_pipeline(
        rank, size, lambda n: ScheduleGPipe(mine, n, loss_fn=F.mse_loss), [mine]
    )


def pipeline_1f1b(rank: int, size: int) -> None:
    mine = stage(rank, size)
    check_pipeline(
        rank, size, lambda n: Schedule1F1B(mine, n, loss_fn=F.mse_loss), [mine]
    )


def pipeline_interleaved_1f1b(rank: int, size: int) -> None:
    mine = [stage(rank + size * i, 2 * size) for i in range(2)]
    check_pipeline(
        rank,
        size,
        lambda n: ScheduleInterleaved1F1B(list(mine), n, loss_fn=F.mse_loss),
        mine,
    )
