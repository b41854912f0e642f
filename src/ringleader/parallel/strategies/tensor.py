"""``tensor``: the ranks of a tensor group share each layer and see the same batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ringleader.errors import ConfigError
from ringleader.parallel.grid import Grid
from ringleader.parallel.microbatch_runner import MicrobatchRunner, device_of
from ringleader.parallel.options import Options
from ringleader.parallel.tensor_plan import head_counts, make_plan, shared_parameters

_log = logging.getLogger("ringleader")


def make_grid(options: Options) -> Grid:
    """See ``Strategy``."""
    world = dist.get_world_size()
    if options.tensor not in (None, world):
        raise ConfigError(
            f"tensor={options.tensor} of {world} ranks leaves {world} ranks in groups "
            "with other data: use the strategy 'ddp+tensor' or 'fsdp+tensor'"
        )
    return Grid(dist.get_rank(), tuple(range(world)), tensor=world)


def place(grid: Grid, model: nn.Module, options: Options) -> MicrobatchRunner:
    """Shard the layers over all ranks."""
    if grid.tensor > 1:
        mesh = grid.mesh(device_of(model).type, ["tensor"])
        shard_layers(model, mesh, options.plan)
    return MicrobatchRunner(
        model, no_exchange, options=options, grid=grid, autocast=options.dtype
    )


@contextmanager
def no_exchange(is_last: bool) -> Iterator[None]:
    """Gradients are complete on each rank: there is nothing to synchronize."""
    yield


def shard_layers(
    model: nn.Module, mesh: DeviceMesh, given: Mapping[str, Any] | None
) -> None:
    """Shard the layers of ``model`` in place, after a plan."""
    size = mesh.size()
    # Ranks with parts of different sizes draw different numbers of random values, and
    # a later dropout of whole activations would differ between them.
    drops = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    plan = make_plan(model, size, given, uneven=not drops)
    if not plan.styles:
        raise ConfigError(
            "tensor: no layer of this model is known to be divisible among "
            f"{size} ranks; give plan={{'layers.*.up': 'colwise', "
            "'layers.*.down': 'rowwise'}"
        )
    owners = list(shared_parameters(model))
    styles = {
        name: make_style(name, model.get_submodule(name), style, size)
        for name, style in plan.styles.items()
    }
    parallelize_module(model, mesh, styles)
    for (module, attribute), *others in owners:
        parameter = getattr(model.get_submodule(module), attribute)
        for other, name in others:
            model.get_submodule(other).register_parameter(name, parameter)
    for name in plan.attentions:
        attention = model.get_submodule(name)
        for attribute, count in head_counts(attention).items():
            setattr(attention, attribute, count // size)
    if mesh.get_rank() == 0:
        _log.info("tensor parallel over %d ranks: %s", size, plan.styles)


def make_style(
    name: str,
    module: nn.Module,
    style: Any,  # noqa: ANN401  # a name, or one of torch's
    size: int,
) -> ParallelStyle:
    """Return torch's style for a name of Hugging Face's; others are returned as is."""
    if isinstance(style, ParallelStyle):
        return style
    if style == "replicated_with_grad_allreduce":  # a norm of whole heads: [B, T, H, D]
        return SequenceParallel(sequence_dim=2, use_local_output=True)
    known = isinstance(module, nn.Linear | nn.Embedding)
    # Parts of unequal size must stay DTensors, which know the size of the whole.
    is_even = not known or module.get_parameter("weight").shape[0] % size == 0
    styles: dict[Any, ParallelStyle] = {
        "colwise": ColwiseParallel(use_local_output=is_even),
        "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
        "rowwise": RowwiseParallel(),
        "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
        "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    }
    if not known or style not in styles:
        raise ConfigError(
            f"tensor: the plan gives {name} ({type(module).__name__}) the style "
            f"{style!r}; known for Linear and Embedding are {', '.join(styles)}. Give "
            "plan= without it, or with a torch.distributed.tensor.parallel style"
        )
    return styles[style]
