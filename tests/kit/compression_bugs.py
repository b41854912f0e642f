"""Compression schemes with known defects, which the tests must detect.

Each function changes the gradients as a defective scheme does and sends them
uncompressed: only the values matter here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ringleader.groups.group import Group
from tests.kit.training_tasks import Average, Gradients

Lossy = Callable[[Tensor], Tensor]
"""The gradients of this rank -> what the other ranks receive."""


def truncating_int8(group: Group) -> Average:
    """Round towards zero instead of to the nearest, and keep no residual."""

    def lose(gradient: Tensor) -> Tensor:
        scale = gradient.abs().max() / 127
        return (gradient / scale).trunc() * scale

    return _exchange(group, lose)


def scaled_random(group: Group, share: float = 0.1) -> Average:
    """Divide the sent values by their share, and keep the others as a residual, too."""
    generator = torch.Generator().manual_seed(42)
    residual = torch.zeros(1)

    def lose(gradient: Tensor) -> Tensor:
        nonlocal residual
        whole = gradient + residual
        is_kept = torch.rand(len(whole), generator=generator) < share
        residual = whole.masked_fill(is_kept, 0)
        return (whole / share).masked_fill(~is_kept, 0)

    return _exchange(group, lose)


def forgetful_top_k(group: Group, share: float = 0.01) -> Average:
    """Drop the residual, so that small gradients are never sent."""

    def lose(gradient: Tensor) -> Tensor:
        largest = gradient.abs().topk(max(1, int(share * len(gradient)))).indices
        return torch.zeros_like(gradient).index_copy_(0, largest, gradient[largest])

    return _exchange(group, lose)


def forgetful_one_bit(group: Group) -> Average:
    """Drop the residual of onebit, and decode zero as minus the scale."""

    def lose(gradient: Tensor) -> Tensor:
        scale = gradient.abs().mean()
        return torch.where(gradient > 0, scale, -scale)

    return _exchange(group, lose)


def _exchange(group: Group, lose: Lossy) -> Average:
    def average(gradients: Gradients) -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
        sent = lose(flat)
        group.all_reduce(sent, "mean")
        lengths = [gradient.numel() for gradient in gradients.values()]
        parts = torch.split(sent, lengths)
        for gradient, part in zip(gradients.values(), parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    return average


BUGS: dict[str, Callable[[Group], Average]] = {
    "truncating int8": truncating_int8,
    "1/p with feedback": scaled_random,
    "residual dropped, top-k": forgetful_top_k,
    "residual dropped, one bit": forgetful_one_bit,
}
