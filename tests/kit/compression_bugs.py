"""The wrong compression of the systems that we replace, written anew to be caught.

Each does to the gradients what those systems do, and sends the result as it is: only
the values matter here. The defects are PM-4, PM-13 and PM-14 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ringleader.groups.group import Group
from tests.kit.training_tasks import Average, Gradients

Lossy = Callable[[Tensor], Tensor]
"""The gradients of this rank -> what the others get to see of them."""


def truncating_int8(group: Group) -> Average:
    """PM-13: towards zero instead of to the nearest; PM-14: no residual is kept."""

    def lose(gradient: Tensor) -> Tensor:
        scale = gradient.abs().max() / 127
        return (gradient / scale).trunc() * scale

    return _exchange(group, lose)


def scaled_random(group: Group, share: float = 0.1) -> Average:
    """PM-4: what is kept is divided by its share, and what is not is kept as well."""
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
    """PM-14: the residual is dropped, so small gradients never arrive."""

    def lose(gradient: Tensor) -> Tensor:
        largest = gradient.abs().topk(max(1, int(share * len(gradient)))).indices
        return torch.zeros_like(gradient).index_copy_(0, largest, gradient[largest])

    return _exchange(group, lose)


def forgetful_one_bit(group: Group) -> Average:
    """PM-14 again, where most is lost; zero becomes minus the scale."""

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
