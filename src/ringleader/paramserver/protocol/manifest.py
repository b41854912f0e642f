"""What a model's tensors are called, in which order and shape: agreed on, never sent.

Everything that travels is checked against the receiver's own manifest, so no length or
shape is ever taken from the network.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ringleader.errors import ConfigError

Vector = NDArray[np.float32]
Kind = Literal["parameter", "buffer", "constant"]

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them; a model with others is refused."""

_MOVING_BUFFERS = (torch.float32, torch.int64)


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the state dict."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Kind
    """Parameters are trained, buffers follow the data, constants never change."""

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """How long it is in a body."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Manifest:
    """All tensors of a model, trained ones first; the same for server and workers."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Describe ``model``; ConfigError if it cannot be trained this way."""
        kept = model.state_dict().keys()
        entries = [_parameter(name, p) for name, p in model.named_parameters()]
        for name, buffer in model.named_buffers():
            if name in kept:
                moves = buffer.dtype in _MOVING_BUFFERS
                entries.append(_entry(name, buffer, "buffer" if moves else "constant"))
        if not any(entry.kind == "parameter" for entry in entries):
            raise ConfigError("the task's model has no parameter that is trained")
        order = ("parameter", "buffer", "constant")
        return cls(tuple(sorted(entries, key=lambda e: order.index(e.kind))))

    @cached_property
    def parameters(self) -> tuple[Entry, ...]:
        """The trained ones, in the order in which updates hold them."""
        return tuple(e for e in self.entries if e.kind == "parameter")

    @cached_property
    def buffers(self) -> tuple[Entry, ...]:
        """The buffers that move, in the order in which updates hold them."""
        return tuple(e for e in self.entries if e.kind == "buffer")

    @cached_property
    def others(self) -> tuple[Entry, ...]:
        """All but the trained ones."""
        return tuple(e for e in self.entries if e.kind != "parameter")

    @cached_property
    def num_parameters(self) -> int:
        """Trained values in all."""
        return sum(e.count for e in self.parameters)

    @cached_property
    def num_buffers(self) -> int:
        """Values of moving buffers in all."""
        return sum(e.count for e in self.buffers)

    @cached_property
    def num_bytes(self) -> int:
        """What all tensors take."""
        return sum(e.num_bytes for e in self.entries)

    @cached_property
    def digest(self) -> str:
        """Tells models apart whose tensors differ in name, order, shape or kind."""
        rows = [f"{e.name} {e.shape} {DTYPES[e.dtype]} {e.kind}" for e in self.entries]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def gradient(self, model: nn.Module) -> Vector:
        """The gradients of ``model`` as one vector; zero where there is none."""
        vector = np.zeros(self.num_parameters, np.float32)
        named = dict(model.named_parameters())
        for entry, part in _parts(self.parameters, vector):
            if (gradient := named[entry.name].grad) is not None:
                part[:] = gradient.detach().reshape(-1).cpu().numpy()
        return vector

    def values(self, model: nn.Module) -> Vector:
        """The trained values of ``model`` as one vector, a copy."""
        return self.gather(dict(model.named_parameters()))

    def buffer_values(self, model: nn.Module) -> Vector:
        """The moving buffers of ``model`` as one vector, a copy."""
        return _gather(self.buffers, dict(model.named_buffers()))

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The tensors of ``model`` themselves, in order and not copied."""
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return {entry.name: named[entry.name].detach() for entry in self.entries}

    def load(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Copy ``tensors`` into ``model``."""
        with torch.no_grad():
            for name, tensor in self.tensors(model).items():
                tensor.copy_(tensors[name])

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Views of a vector of trained values, each in its parameter's shape."""
        parts = _parts(self.parameters, vector)
        return {entry.name: part.reshape(entry.shape) for entry, part in parts}

    def split_buffers(self, vector: Vector) -> dict[str, Vector]:
        """Views of a vector of buffers, each in its buffer's shape."""
        parts = _parts(self.buffers, vector)
        return {entry.name: part.reshape(entry.shape) for entry, part in parts}

    def gather(self, named: Mapping[str, Tensor]) -> Vector:
        """The trained tensors by name as one vector, a copy."""
        return _gather(self.parameters, named)


def _gather(entries: tuple[Entry, ...], named: Mapping[str, Tensor]) -> Vector:
    """Assignments, not ``np.concatenate``: they let other threads run meanwhile."""
    vector = np.empty(sum(e.count for e in entries), np.float32)
    for entry, part in _parts(entries, vector):
        part[:] = named[entry.name].detach().reshape(-1).cpu().numpy()
    return vector


def _parts(
    entries: tuple[Entry, ...], vector: Vector
) -> Iterator[tuple[Entry, Vector]]:
    begin = 0
    for entry in entries:
        yield entry, vector[begin : begin + entry.count]
        begin += entry.count


def _parameter(name: str, parameter: nn.Parameter) -> Entry:
    if parameter.requires_grad and parameter.dtype is not torch.float32:
        raise ConfigError(
            f"parameter {name!r} is {parameter.dtype}; training over the internet "
            "keeps parameters in float32: convert the model with model.float()"
        )
    return _entry(
        name, parameter, "parameter" if parameter.requires_grad else "constant"
    )


def _entry(name: str, tensor: Tensor, kind: Kind) -> Entry:
    if tensor.dtype not in DTYPES:
        raise ConfigError(f"tensor {name!r} is {tensor.dtype}, which cannot travel")
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise ConfigError(
            f"tensor {name!r} has values that are not finite, which are refused on the "
            "way; register_buffer(..., persistent=False) keeps masks at home"
        )
    return Entry(name, tuple(tensor.shape), tensor.dtype, kind)
