"""The division of integers, at the limits of their types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringleader.engine.reductions import divide

INTEGERS = [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("by", [1, 2, 3, 7, 64, 127, 128, 255, 256, 1000])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_divided_toward_zero(dtype: torch.dtype, by: int) -> None:
    """Compared with Python's integers, which have no limits."""
    limits = torch.iinfo(dtype)
    near = range(-300, 301)
    given = [*near, *(limits.min + n for n in near), *(limits.max + n for n in near)]
    given = [n for n in given if limits.min <= n <= limits.max]
    array = np.array(given, str(dtype).removeprefix("torch."))
    divide(array, dtype, by)
    assert array.tolist() == [abs(n) // by * (1 if n >= 0 else -1) for n in given]
