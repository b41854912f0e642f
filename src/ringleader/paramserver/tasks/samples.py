"""The samples of a task, whichever way its ``dataset`` hands them over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from ringleader.errors import ConfigError

Batch = Any
"""What the task's ``loss`` takes: tensors, mostly (inputs, labels)."""

_PROBES = 32
"""Samples of a lazy dataset that the digest looks at: files differ in many, and reading
all of them would make joining slow."""


class Samples:
    """Samples by number: a tuple of tensors, or a dataset with ``len`` and ``[i]``."""

    def __init__(self, source: Any, where: str) -> None:  # noqa: ANN401 - the task's
        if isinstance(source, TensorDataset):
            source = source.tensors
        self._tensors = _tensors(source)
        self._source = source
        self._count = len(self._tensors[0]) if self._tensors else _length(source, where)
        if self._tensors and any(len(t) != self._count for t in self._tensors):
            lengths = ", ".join(str(len(t)) for t in self._tensors)
            raise ConfigError(f"{where}: tensors of unequal length: {lengths}")
        if self._count < 1:
            raise ConfigError(f"{where}: there is no sample in it")

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Tensor) -> Batch:
        """The samples of these numbers, in this order, as one batch."""
        if self._tensors:
            return tuple(tensor[indices] for tensor in self._tensors)
        return default_collate([self._source[int(i)] for i in indices])

    def batches(self, size: int) -> Iterator[Batch]:
        """All samples in order, ``size`` at a time."""
        for begin in range(0, self._count, size):
            yield self.batch(torch.arange(begin, min(begin + size, self._count)))

    def digest(self) -> str:
        """How many there are and a hash of them, in words for people."""
        hasher = hashlib.sha256()
        for item in self._tensors or self._probes():
            _feed(hasher.update, item)
        return f"{self._count} samples, {hasher.hexdigest()[:16]}"

    def _probes(self) -> Iterator[object]:
        numbers = np.linspace(0, self._count - 1, min(_PROBES, self._count))
        return (self._source[int(i)] for i in numbers)


def batch_length(batch: Batch) -> int:
    """How many samples a batch holds: the length of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch
    return batch_length(next(iter(parts)))


def _tensors(source: object) -> tuple[Tensor, ...]:
    if isinstance(source, Tensor):
        return (source,)
    if not isinstance(source, tuple | list):
        return ()
    are_tensors = all(isinstance(each, Tensor) for each in source)
    return tuple(source) if are_tensors else ()


def _length(source: Any, where: str) -> int:  # noqa: ANN401 - the task's
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        kind = type(source).__name__
        text = "a tuple of tensors, or a dataset with len() and [i]"
        raise ConfigError(f"{where} must give {text}, not {kind}")
    return len(source)


def _feed(update: Callable[[bytes], None], item: object) -> None:
    """Hash what is in ``item``, with shapes and types, whatever machine this is."""
    if isinstance(item, Tensor):
        item = item.detach().cpu().numpy()
    if isinstance(item, np.ndarray):
        little = np.ascontiguousarray(item.astype(item.dtype.newbyteorder("<")))
        update(f"{little.dtype.str}{little.shape}".encode())
        update(little.tobytes())
    elif isinstance(item, Mapping):
        _feed(update, sorted(item.items(), key=lambda pair: str(pair[0])))
    elif isinstance(item, tuple | list):
        for each in item:
            _feed(update, each)
    elif isinstance(item, str | bytes | int | float | bool | None):
        update(f"{type(item).__name__}:{item!r}".encode())
    else:  # an object of the task's: what it prints may hold its address
        update(type(item).__name__.encode())
