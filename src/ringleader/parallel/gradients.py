"""The norm of the whole gradient, wherever its parts are, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ringleader.parallel.exchange_device import exchange_device


@torch.no_grad()
def total_norm(
    parameters: Iterable[nn.Parameter], groups: Sequence[dist.ProcessGroup] = ()
) -> Tensor:
    """Return the 2-norm of all gradients; all ranks must call it.

    Shards of a DTensor are added up over its mesh. ``groups`` are those whose ranks
    hold different parameters, such as the stages of a pipeline.
    """
    norms: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
    device = torch.device("cpu")
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        device = parameter.device
        # A parameter without gradient counts: all ranks need the same collectives.
        entry = norms.setdefault(_groups_of_shards(parameter), [])
        if (local := local_gradient(parameter)) is not None:
            entry.append(torch.linalg.vector_norm(local.float()))
    total = torch.zeros((), device=device)
    for shards, parts in norms.items():
        squares = torch.stack(parts).square().sum() if parts else total.new_zeros(())
        for group in shards:
            squares = _sum(squares, group)
        total = total + squares
    for group in groups:
        total = _sum(total, group)
    return total.sqrt()


@torch.no_grad()
def scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply all gradients in place."""
    for parameter in parameters:
        if (local := local_gradient(parameter)) is not None:
            local.mul_(factor)


def local_gradient(parameter: nn.Parameter) -> Tensor | None:
    """Return this rank's part of the gradient, placed as the parameter is.

    Autograd leaves the gradient of a sharded embedding whole, and that of a norm of
    sharded activations not yet added up.
    """
    gradient = parameter.grad
    if not isinstance(gradient, DTensor):
        return gradient
    assert isinstance(parameter, DTensor)
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
        parameter.grad = gradient
    return gradient.to_local()


def _groups_of_shards(parameter: nn.Parameter) -> tuple[dist.ProcessGroup, ...]:
    """Return the groups whose ranks hold different parts of a parameter."""
    if not isinstance(parameter, DTensor):
        return ()
    return tuple(
        parameter.device_mesh.get_group(dimension)
        for dimension, placement in enumerate(parameter.placements)
        if not placement.is_replicate()
    )


def _sum(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over the ranks of a group."""
    device = exchange_device(value.device.type, dist.get_backend_config(group))
    total = value.to(device, copy=True)
    dist.all_reduce(total, group=group)
    return total.to(value.device)
