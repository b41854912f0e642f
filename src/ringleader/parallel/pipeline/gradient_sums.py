"""Adds up gradients over ranks: of replicas, and of parameters that stages share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ringleader.parallel.exchange_device import exchange_device

BUCKET_BYTES = 25 << 20
"""Gradients that are sent together, as in torch's DDP."""


@dataclass(frozen=True, slots=True)
class TiedParameters:
    """Parameters of which several ranks of a pipeline have a copy."""

    parameters: tuple[nn.Parameter, ...]
    group: dist.ProcessGroup
    is_first: bool
    """True on the first of these ranks: the norm of the gradient counts them there."""


@torch.no_grad()
def sum_gradients(
    parameters: Collection[nn.Parameter], group: dist.ProcessGroup
) -> None:
    """Replace each gradient by the sum over the ranks of a group.

    A parameter without gradient counts as zero: all ranks send the same.
    """
    trained = [each for each in parameters if each.requires_grad]
    for each in trained:
        if each.grad is None:
            each.grad = torch.zeros_like(each)
    pending = []
    for bucket in _buckets([each.grad for each in trained if each.grad is not None]):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        sent = flat.to(
            exchange_device(flat.device.type, dist.get_backend_config(group))
        )
        pending.append(
            (bucket, sent, dist.all_reduce(sent, group=group, async_op=True))
        )
    for bucket, sent, work in pending:
        if work is not None:
            work.wait()
        parts = torch.split(sent, [gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


Gradients = dict[nn.Parameter, Tensor]


def take_gradients(model: nn.Module) -> Gradients:
    """Return the gradients and leave none."""
    taken = {p: p.grad for p in model.parameters() if p.grad is not None}
    for parameter in taken:
        parameter.grad = None
    return taken


def add_gradients(taken: Gradients) -> None:
    """Add gradients that were taken before to those that are there now."""
    for parameter, gradient in taken.items():
        now = parameter.grad
        parameter.grad = gradient if now is None else now + gradient


def _buckets(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the gradients in lists of one dtype, of about BUCKET_BYTES each."""
    buckets: list[list[Tensor]] = []
    for dtype in dict.fromkeys(each.dtype for each in gradients):
        size = BUCKET_BYTES
        for gradient in (each for each in gradients if each.dtype == dtype):
            if size >= BUCKET_BYTES:
                buckets.append([])
                size = 0
            buckets[-1].append(gradient)
            size += gradient.nbytes
    return buckets
