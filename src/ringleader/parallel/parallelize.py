"""``parallelize``: one call that distributes a model and returns its trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ringleader.errors import ConfigError
from ringleader.parallel.grid import Grid
from ringleader.parallel.layout_check import (
    broadcast_state,
    check_layout,
    model_layout,
)
from ringleader.parallel.microbatch_runner import device_of
from ringleader.parallel.options import Loss, Options, check
from ringleader.parallel.runner import Runner
from ringleader.parallel.trainer import Trainer

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


def parallelize(  # noqa: PLR0913 - one keyword per option
    model: nn.Module,
    strategy: str = "ddp",
    *,
    optimizer: MakeOptimizer,
    loss: Loss | None = None,
    microbatches: int = 1,
    clip: float | None = None,
    precision: str | None = None,
    batch_norm: str = "sync",
    shard: str | None = None,
    hosts: Sequence[Sequence[int]] | None = None,
    prefetch: int | None = None,
    blocks: Sequence[type[nn.Module]] | None = None,
    tensor: int | None = None,
    plan: Mapping[str, Any] | None = None,
) -> Trainer:
    """Distribute ``model`` over all ranks; return what trains it.

    trainer = parallelize(model, "fsdp", optimizer=lambda p: AdamW(p, 1e-3), loss=mse)
    for x, y in batches:
        loss = trainer.step(x, y)

    ``strategy`` is "ddp", "fsdp", "tensor", or two of them: "fsdp+tensor",
    "ddp+tensor". All ranks call it with the same model, whose values are then those of
    rank 0.

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

    Raises CallMismatch on all ranks, with the rank and the first parameter or option
    that differs, if the calls differ; ConfigError if it cannot be done.
    """
    options = Options(
        strategy=strategy,
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
    runner, grid = _distribute(model, options)
    trained = [each for each in runner.model.parameters() if each.requires_grad]
    return Trainer(runner, optimizer(trained), options, grid)


Strategy = Callable[[nn.Module, Options], tuple[Runner, Grid]]


def _distribute(model: nn.Module, options: Options) -> tuple[Runner, Grid]:
    """Let the strategy place the model; "fsdp+tensor" is a matter of fsdp."""
    # FSDP and pipelining take a second to import; only what is used is.
    name = options.parts[0]
    module = import_module(f"ringleader.parallel.strategies.{name}")
    place: Strategy = module.place
    return place(model, options)
