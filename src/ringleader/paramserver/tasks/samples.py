"""The samples of a task, from tensors or from a dataset."""

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
"""The argument of the task's ``loss``: tensors, usually (inputs, labels)."""

_HASHED_SAMPLES = 32
"""Samples of a lazy dataset that are hashed. Different data differs in many samples,
and reading all of them would make joining slow."""


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
            raise ConfigError(f"{where}: tensors of different lengths: {lengths}")
        if self._count < 1:
            raise ConfigError(f"{where}: it has no samples")

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Tensor) -> Batch:
        """Return the samples with these numbers, in this order, as one batch."""
        if self._tensors:
            return tuple(tensor[indices] for tensor in self._tensors)
        return default_collate([self._source[int(i)] for i in indices])

    def batches(self, size: int) -> Iterator[Batch]:
        """Iterate over all samples in order, ``size`` at a time."""
        for begin in range(0, self._count, size):
            yield self.batch(torch.arange(begin, min(begin + size, self._count)))

    def digest(self) -> str:
        """Return the number of samples and a hash of them, readable for people."""
        hasher = hashlib.sha256()
        for item in self._tensors or self._hashed_samples():
            _update_hash(hasher.update, item)
        return f"{self._count} samples, {hasher.hexdigest()[:16]}"

    def _hashed_samples(self) -> Iterator[object]:
        numbers = np.linspace(0, self._count - 1, min(_HASHED_SAMPLES, self._count))
        return (self._source[int(i)] for i in numbers)


def batch_length(batch: Batch) -> int:
    """Return the number of samples in a batch: the length of its first tensor."""
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
        raise ConfigError(f"{where} must return {text}, not {kind}")
    return len(source)


def _update_hash(update: Callable[[bytes], None], item: object) -> None:
    """Hash the content of ``item`` with shapes and types, equally on every machine."""
    if isinstance(item, Tensor):
        item = item.detach().cpu().numpy()
    if isinstance(item, np.ndarray):
        little = np.ascontiguousarray(item.astype(item.dtype.newbyteorder("<")))
        update(f"{little.dtype.str}{little.shape}".encode())
        update(little.tobytes())
    elif isinstance(item, Mapping):
        _update_hash(update, sorted(item.items(), key=lambda pair: str(pair[0])))
    elif isinstance(item, tuple | list):
        for each in item:
            _update_hash(update, each)
    elif isinstance(item, str | bytes | int | float | bool | None):
        update(f"{type(item).__name__}:{item!r}".encode())
    else:  # another object: its repr may contain its address
        update(type(item).__name__.encode())
