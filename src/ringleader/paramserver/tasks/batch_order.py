"""The order of samples: which samples are in the batch with a given number.

Samples form one endless sequence: a shuffled epoch, then the next, each in an order
that depends on the seed and the epoch alone. Batch *b* is the *b*-th run of
``batch_size`` samples. So it does not matter which worker computes a batch, nor whether
it was computed before, and batches 2v and 2v + 1 of two workers together are one batch
of a run with one worker.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ORDER = "1"
"""Part of every fingerprint. It changes when this file changes the order."""


def batch_indices(seed: int, batch: int, batch_size: int, count: int) -> Tensor:
    """Return which of ``count`` samples are in the batch with number ``batch``."""
    begin, end = batch * batch_size, (batch + 1) * batch_size
    epochs = range(begin // count, (end - 1) // count + 1)
    samples = np.concatenate([_order(seed, epoch, count) for epoch in epochs])
    start = epochs.start * count
    return torch.from_numpy(samples[begin - start : end - start])


def mixed_seed(seed: int, number: int) -> int:
    """Mix two numbers to a seed; near numbers give distant seeds (SplitMix64)."""
    mask = 2**64 - 1
    value = (seed * 0x9E3779B97F4A7C15 + number + 1) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & mask
    return (value ^ (value >> 31)) & (2**63 - 1)


@lru_cache(maxsize=4)  # an epoch has many batches; two epochs are in use at its end
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Shuffle an epoch. RandomState is the same in every version of numpy."""
    generator = np.random.RandomState(mixed_seed(seed, epoch) % 2**32)
    return generator.permutation(count).astype(np.int64)
