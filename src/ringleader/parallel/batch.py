"""The batch of a step, and its micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ringleader.errors import ConfigError

EXACT_IN_FLOAT32 = 1 << 24


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of the model, and the target of the loss."""

    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    target: Any = None

    def rows(self) -> int:
        """Return the length of the first dimension, which all tensors share."""
        tensors = [t for t in self._leaves() if t.ndim]
        if not tensors:
            raise ConfigError("step: the batch holds no tensor with rows")
        counts = {tensor.shape[0] for tensor in tensors}
        if len(counts) > 1:
            shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
            raise ConfigError(
                f"step: the tensors of a batch need the same first dimension, which "
                f"is cut into micro-batches; got {shapes}"
            )
        return int(counts.pop())

    def fingerprint(self) -> float:
        """Return a number that batches with other values hardly have in common.

        It is a sum of integers: unlike machines add floats in other orders.
        """
        tensors = [t.detach() for t in self._leaves() if t.numel()]
        raw = [t.contiguous().view(-1).view(torch.uint8) for t in tensors]
        return float(sum(int(t.sum(dtype=torch.int64)) for t in raw) % EXACT_IN_FLOAT32)

    def split(self, parts: int) -> list[Batch]:
        """Return ``parts`` batches, equal up to one row; some may be empty.

        Values that are no tensors, and tensors without dimensions, go to all of them.
        """
        whole = (self.inputs, dict(self.keywords), self.target)

        def part(number: int) -> Batch:
            def cut(tensor: Tensor) -> Tensor:
                return tensor.tensor_split(parts)[number] if tensor.ndim else tensor

            return Batch(*tree_map_only(Tensor, cut, whole))

        return [self] if parts == 1 else [part(number) for number in range(parts)]

    def _leaves(self) -> list[Tensor]:
        leaves = tree_leaves((self.inputs, dict(self.keywords), self.target))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
