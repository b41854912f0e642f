"""ResultMemory: the result of the last step, and memory for those that follow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_FREE = 64
"""Tensors that are kept for later results; a model has far fewer buckets."""


class ResultMemory:
    """Results of steps; the last one stays as it is until the next one is there."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []
        """The results of the step that was delivered last."""
        self._free: list[Tensor] = []

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return memory for results of these shapes, with any content."""
        return [self._take(each) for each in tensors]

    def _take(self, like: Tensor) -> Tensor:
        for index, each in enumerate(self._free):
            if each.dtype == like.dtype and each.numel() == like.numel():
                return self._free.pop(index).view(like.shape)
        return torch.empty(like.shape, dtype=like.dtype)

    def keep(self, results: list[Tensor]) -> None:
        """Make ``results`` the last ones; the memory of those before is free."""
        self.free(self.results)
        self.results = results

    def free(self, tensors: Sequence[Tensor]) -> None:
        """Take back memory that nobody reads or writes any more."""
        self._free = [*tensors, *self._free][:MAX_FREE]
