"""The 1797 handwritten digits that scikit-learn ships, ready for every example."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor

NUM_TEST = 360


def load() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(images, labels) to train with and (images, labels) to test with.

    An image is 64 numbers from 0 to 1. Every process loads and splits alike.
    """
    raw = load_digits()
    images = torch.tensor(raw.data, dtype=torch.float32) / 16
    labels = torch.tensor(raw.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:NUM_TEST], order[NUM_TEST:]
    return (images[train], labels[train]), (images[test], labels[test])
