"""What travels from one stage of a pipeline to the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """One tensor of a micro-batch, without the first dimension, its samples."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def example(self, samples: int) -> Tensor:
        """Return a tensor without memory for this many samples."""
        shape = (samples, *self.shape)
        grad = self.requires_grad
        return torch.empty(shape, dtype=self.dtype, device="meta", requires_grad=grad)

    def num_bytes(self, samples: int) -> int:
        """Return the size for this many samples."""
        return self.example(samples).nbytes


@dataclass(frozen=True, slots=True)
class Boundary:
    """The value between two layers: one tensor, or a tuple of them."""

    tensors: tuple[TensorLayout, ...]
    is_tuple: bool

    def examples(self, samples: int) -> tuple[Tensor, ...]:
        """Return tensors without memory for this many samples."""
        return tuple(layout.example(samples) for layout in self.tensors)

    def num_bytes(self, samples: int) -> int:
        """Return the size for this many samples."""
        return sum(layout.num_bytes(samples) for layout in self.tensors)


def boundary_of(value: object, samples: int, where: str) -> Boundary:
    """Return the layout of a value; raises ConfigError if it cannot be sent."""
    is_tuple = isinstance(value, tuple | list)
    parts = list(value) if isinstance(value, tuple | list) else [value]
    layouts = []
    for part in parts:
        if not isinstance(part, Tensor):
            text = f"{where} is a {type(part).__name__}; between the layers of a"
            raise ConfigError(f"{text} pipeline only tensors, or tuples of them, pass")
        if part.ndim == 0 or part.shape[0] != samples:
            text = f"{where} has the shape {list(part.shape)}; its first dimension must"
            raise ConfigError(f"{text} be the {samples} samples of the micro-batch")
        layouts.append(
            TensorLayout(tuple(part.shape[1:]), part.dtype, part.requires_grad)
        )
    return Boundary(tuple(layouts), is_tuple)
