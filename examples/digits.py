"""Loads the 1797 handwritten digits of scikit-learn for the examples."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor

NUM_TEST = 360


def load() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (images, labels) for training and (images, labels) for testing.

    An image is 64 numbers from 0 to 1. The split is the same in every process.
    """
    raw = load_digits()
    images = torch.tensor(raw.data, dtype=torch.float32) / 16
    labels = torch.tensor(raw.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:NUM_TEST], order[NUM_TEST:]
    return (images[train], labels[train]), (images[test], labels[test])
