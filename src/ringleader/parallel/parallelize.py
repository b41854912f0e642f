"""``parallelize``: one call that distributes a model and returns its trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ringleader.errors import ConfigError
from ringleader.parallel.announce import announce
from ringleader.parallel.grid import Grid
from ringleader.parallel.layout_check import (
    broadcast_state,
    check_layout,
    model_layout,
)
from ringleader.parallel.measurement.data_plan import plan_data
from ringleader.parallel.microbatch_runner import device_of
from ringleader.parallel.options import Loss, MakeOptimizer, Options, check
from ringleader.parallel.plan.data_plan import report
from ringleader.parallel.runner import Runner
from ringleader.parallel.trainer import Trainer
from ringleader.settings.parallel import is_dry_run


class Strategy(Protocol):
    """A module of ``ringleader.parallel.strategies``."""

    def make_grid(self, options: Options) -> Grid:
        """Return the places of all ranks."""
        ...

    def place(self, grid: Grid, model: nn.Module, options: Options) -> Runner:
        """Keep this rank's part of the model; return what runs it."""
        ...


def parallelize(  # noqa: PLR0913 - one keyword per option
    model: nn.Module,
    strategy: str = "ddp",
    *,
    optimizer: MakeOptimizer,
    loss: Loss | None = None,
    microbatches: int | None = None,
    clip: float | None = None,
    precision: str | None = None,
    batch_norm: str = "sync",
    shard: str | None = None,
    hosts: Sequence[Sequence[int]] | None = None,
    prefetch: int | None = None,
    blocks: Sequence[type[nn.Module]] | None = None,
    tensor: int | None = None,
    plan: Mapping[str, Any] | None = None,
    schedule: str | None = None,
    stages: int | None = None,
    stages_per_rank: int | None = None,
    layers: Sequence[str | nn.Module] | None = None,
    split: Sequence[int] | None = None,
    example: Sequence[Any] | None = None,
    dry_run: bool = False,
) -> Trainer:
    """Distribute ``model`` over all ranks; return what trains it.

    trainer = parallelize(model, "fsdp", optimizer=lambda p: AdamW(p, 1e-3), loss=mse)
    for x, y in batches:
        loss = trainer.step(x, y)

    ``strategy`` is "ddp", "fsdp", "tensor", "pipeline", or two of them: "fsdp+tensor",
    "ddp+tensor", "pipeline+ddp", "pipeline+fsdp". All ranks call it with the same
    model, whose values are then those of rank 0.

    ``optimizer`` gets the parameters and returns a torch optimizer: sharding replaces
    parameters, so one that exists before would train the old ones. ``loss(output,
    target)`` is the mean over the rows of a batch; without it, the model returns its
    loss. ``microbatches`` parts of each batch are computed one after the other, and
    gradients are exchanged once. ``clip`` bounds the norm of the whole gradient.
    ``precision`` is None, "bf16" or "fp16". ``batch_norm="sync"`` normalizes over the
    batches of all ranks, "local" over each rank's.

    For fsdp: ``shard`` is "full" (default), "grad" (parameters stay whole between
    forward and backward) or "hybrid" (sharded inside each host, replicated across;
    ``hosts`` lists their ranks if they are not to be found out). ``prefetch`` is the
    number of blocks that are gathered ahead (1), ``blocks`` the classes of modules
    that are gathered as one.

    For tensor: ``tensor`` is the number of ranks that share each layer (all of them),
    ``plan`` says how; see docs/parallel.md.

    For pipeline: ``schedule`` is "1f1b" (default), "gpipe" or "interleaved" with
    ``stages_per_rank`` (2). ``layers`` names the layers in order, if they are not
    found; ``split`` gives each stage's number of layers instead of a measured plan;
    ``stages`` is for "pipeline+ddp" and "pipeline+fsdp". See docs/pipeline.md.

    ``example`` is a batch as for ``step``: a pipeline needs it, and measures the
    machines with it. With it, ddp and fsdp measure them, too: ``trainer.shares`` are
    then the parts of a batch in proportion to speed and memory. ``dry_run`` prints the
    plan and ends the program.

    Raises CallMismatch on all ranks, with the rank and the first parameter or option
    that differs, if the calls differ; ConfigError if it cannot be done.
    """
    options = Options(
        strategy=strategy,
        optimizer=optimizer,
        loss=loss,
        microbatches=microbatches,
        clip=clip,
        precision=precision,
        batch_norm=batch_norm,
        shard=shard,
        hosts=hosts,
        prefetch=prefetch,
        blocks=blocks,
        tensor=tensor,
        plan=plan,
        schedule=schedule,
        stages=stages,
        stages_per_rank=stages_per_rank,
        layers=layers,
        split=split,
        example=example,
        dry_run=dry_run or is_dry_run(),
    )
    check(options)
    if isinstance(optimizer, Optimizer):
        raise ConfigError(
            "optimizer= takes a function, such as lambda p: torch.optim.AdamW(p, 1e-3):"
            " sharding replaces parameters, and this optimizer would train the old"
            " ones"
        )
    if not dist.is_initialized():
        raise ConfigError(
            "parallelize needs torch.distributed.init_process_group('ringleader') first"
        )
    lines = [f"world: {dist.get_world_size()}", *options.lines(), *model_layout(model)]
    check_layout(lines, device_of(model))
    broadcast_state(model)
    # FSDP and pipelining take a second to import; only what is used is. The first
    # strategy of two places the other one, too.
    name = f"ringleader.parallel.strategies.{options.parts[0]}"
    chosen: Strategy = import_module(name)
    grid = chosen.make_grid(options)
    shares = _shares(model, options, grid)
    runner = chosen.place(grid, model, options)
    trained = [each for each in runner.model.parameters() if each.requires_grad]
    if not trained:  # a stage of a pipeline with frozen layers only
        trained = [nn.Parameter(torch.empty(0))]
    made = optimizer(trained)
    _update_one_by_one_if_mixed(made)
    trainer = Trainer(runner, made, options, grid)
    trainer.shares = shares
    return trainer


def _update_one_by_one_if_mixed(optimizer: Optimizer) -> None:
    """Keep an optimizer from updating DTensors and other tensors in one operation.

    Torch's default on CUDA is one operation for all parameters of a group, which fails
    if only some of them are sharded.
    """
    for group in optimizer.param_groups:
        kinds = {isinstance(each, DTensor) for each in group["params"]}
        if len(kinds) > 1 and group.get("foreach", False) is None:
            group["foreach"] = False


def _shares(model: nn.Module, options: Options, grid: Grid) -> list[float] | None:
    """Measure the machines, print who gets how much of a batch; None if not asked."""
    is_asked = options.example is not None or options.dry_run
    if "pipeline" in options.parts or not is_asked:
        return None
    plan = plan_data(model, options, grid)
    announce(report(plan), dry_run=options.dry_run)
    return list(plan.weights)
