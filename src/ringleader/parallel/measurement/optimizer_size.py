"""Measures how much state an optimizer keeps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from ringleader.parallel.measurement.leaves import tensors_in

_ELEMENTS = 4096


def optimizer_ratio(
    make: Callable[[list[nn.Parameter]], Optimizer], dtype: torch.dtype = torch.float32
) -> float:
    """Return the bytes of state per byte of parameters: 0 for SGD, 2 for Adam.

    One step is made with a small matrix; what does not grow with it is not counted.
    """
    side = int(_ELEMENTS**0.5)
    probe = nn.Parameter(torch.zeros(side, side, dtype=dtype, device="cpu"))
    probe.grad = torch.zeros_like(probe)
    optimizer = make([probe])
    with torch.enable_grad():
        optimizer.step()
    kept = sum(each.nbytes for each in tensors_in(dict(optimizer.state[probe])))
    return kept / probe.nbytes if kept >= probe.nbytes // 2 else 0.0
