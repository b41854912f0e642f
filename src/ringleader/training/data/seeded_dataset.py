"""A dataset whose random augmentation follows from the sample, not from the machine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

SampleKey = tuple[int, int]
"""Epoch and index of a sample."""


class SeededDataset(Dataset[Any]):
    """Gets each sample with the generators seeded from (seed, epoch, index).

    That holds for ``torch``, ``numpy.random`` and ``random``, so a sample that another
    machine gets again is the same. In the training process itself the states of the
    generators are put back. A dataset that only indexes tensors draws nothing, and is
    not seeded: that takes three times as long as getting the sample.
    """

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self.dataset = dataset
        self._seed = seed
        self._draws = not draws_nothing(dataset)

    def __getitems__(self, keys: Sequence[SampleKey]) -> list[Any]:
        """Return samples; torch's DataLoader calls this with those of a quantum."""
        if get_worker_info() is None:
            if not self._draws:
                return [self.dataset[index] for _, index in keys]
            with _generators_restored():
                return [self._item(key) for key in keys]
        if self._draws:
            return [self._item(key) for key in keys]
        self._seed_generators(keys[-1])  # for collate_fn, which runs after the last one
        return [self.dataset[index] for _, index in keys]

    def _item(self, key: SampleKey) -> Any:  # noqa: ANN401  # the user's sample
        self._seed_generators(key)
        return self.dataset[key[1]]

    def _seed_generators(self, key: SampleKey) -> None:
        seed = _seed_of(self._seed, *key)
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        random.seed(seed)


def draws_nothing(dataset: Dataset[Any]) -> bool:
    """Whether getting a sample only indexes tensors, so that no code can draw."""
    if type(dataset) is Subset:
        return draws_nothing(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(draws_nothing(each) for each in dataset.datasets)
    return type(dataset) is TensorDataset


def _seed_of(seed: int, epoch: int, index: int) -> int:
    text = f"ringleader sample {seed} {epoch} {index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


@contextmanager
def _generators_restored() -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
