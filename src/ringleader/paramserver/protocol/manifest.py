"""The manifest of a model: the names, order, shapes and dtypes of its tensors.

It is never sent. Each side derives it from its own model, and checks every body against
it, so no length or shape is ever taken from the network.
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
"""Names of dtypes in safetensors; a model with other dtypes is refused."""

_MOVING_BUFFERS = (torch.float32, torch.int64)


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the state dict."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Kind
    """Parameters are trained, buffers follow the data, constants never change."""

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in a body."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Manifest:
    """All tensors of a model, trained ones first; equal for server and workers."""

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
        """The trained tensors, in the order of updates."""
        return tuple(e for e in self.entries if e.kind == "parameter")

    @cached_property
    def buffers(self) -> tuple[Entry, ...]:
        """The buffers that follow the data, in the order of updates."""
        return tuple(e for e in self.entries if e.kind == "buffer")

    @cached_property
    def others(self) -> tuple[Entry, ...]:
        """All tensors but the trained ones."""
        return tuple(e for e in self.entries if e.kind != "parameter")

    @cached_property
    def num_parameters(self) -> int:
        """Number of trained values."""
        return sum(e.count for e in self.parameters)

    @cached_property
    def num_buffers(self) -> int:
        """Number of values in the buffers that follow the data."""
        return sum(e.count for e in self.buffers)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(e.num_bytes for e in self.entries)

    @cached_property
    def digest(self) -> str:
        """Hash of the names, order, shapes, dtypes and kinds of all tensors."""
        rows = [f"{e.name} {e.shape} {DTYPES[e.dtype]} {e.kind}" for e in self.entries]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def gradient(self, model: nn.Module) -> Vector:
        """Return the gradients of ``model`` as one vector; zero where there is none."""
        vector = np.zeros(self.num_parameters, np.float32)
        named = dict(model.named_parameters())
        for entry, part in _parts(self.parameters, vector):
            if (gradient := named[entry.name].grad) is not None:
                part[:] = gradient.detach().reshape(-1).cpu().numpy()
        return vector

    def values(self, model: nn.Module) -> Vector:
        """Copy the trained values of ``model`` to one vector."""
        return self.gather(dict(model.named_parameters()))

    def buffer_values(self, model: nn.Module) -> Vector:
        """Copy the buffers that follow the data to one vector."""
        return _gather(self.buffers, dict(model.named_buffers()))

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the tensors of ``model`` by name, in order and not copied."""
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return {entry.name: named[entry.name].detach() for entry in self.entries}

    def load(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Copy ``tensors`` into ``model``."""
        with torch.no_grad():
            for name, tensor in self.tensors(model).items():
                tensor.copy_(tensors[name])

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Split a vector of trained values into views with the parameters' shapes."""
        parts = _parts(self.parameters, vector)
        return {entry.name: part.reshape(entry.shape) for entry, part in parts}

    def split_buffers(self, vector: Vector) -> dict[str, Vector]:
        """Split a vector of buffer values into views in the shapes of the buffers."""
        parts = _parts(self.buffers, vector)
        return {entry.name: part.reshape(entry.shape) for entry, part in parts}

    def gather(self, named: Mapping[str, Tensor]) -> Vector:
        """Copy the trained tensors among ``named`` to one vector."""
        return _gather(self.parameters, named)


def _gather(entries: tuple[Entry, ...], named: Mapping[str, Tensor]) -> Vector:
    """Copy tensors to one vector, by assignments, which release the GIL."""
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
        raise ConfigError(f"tensor {name!r} is {tensor.dtype}, which cannot be sent")
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise ConfigError(
            f"tensor {name!r} has values that are not finite, which are never sent; "
            "register_buffer(..., persistent=False) keeps masks out of them"
        )
    return Entry(name, tuple(tensor.shape), tensor.dtype, kind)
