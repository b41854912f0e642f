"""Values cut out of the autograd graph, as a stage receives them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only


def tensors_in(value: object) -> list[Tensor]:
    """Return all tensors of a value."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def cut(value: Any) -> Any:  # noqa: ANN401 - keeps the structure of the value
    """Return the value as leaves of a new graph, as if another stage had sent it."""

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(tensor.requires_grad)

    return tree_map_only(Tensor, leaf, value)


def changes_input(module: nn.Module) -> bool:
    """Return whether a module may write to its input, as nn.ReLU(inplace=True) does."""
    return any(getattr(each, "inplace", False) is True for each in module.modules())


def copy_inputs(value: Any) -> Any:  # noqa: ANN401 - keeps the structure of the value
    """Return a copy; autograd forbids writing to a leaf."""
    return tree_map_only(Tensor, Tensor.clone, value)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
