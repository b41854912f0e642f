"""The norm of a gradient, with the same bits however many threads compute it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from torch import Tensor

PIECE: Final = 16 * 1024
"""Elements that are summed at once. torch sums fewer than 32 Ki in one thread, and
several rows of a matrix each in one thread, so the order of additions is fixed."""

ROWS: Final = 64
"""Pieces that are converted to float64 at once: 8 MiB."""


def squared_norm(flat: Tensor) -> float:
    """Return the sum of squares of a flat tensor in host memory, in float64."""
    sums: list[float] = []
    whole = flat.numel() // PIECE
    rows = flat[: whole * PIECE].view(whole, PIECE)
    for start in range(0, whole, ROWS):
        part = rows[start : start + ROWS].double()
        sums += (part * part).sum(dim=1).tolist()
    rest = flat[whole * PIECE :].double()
    sums.append(float((rest * rest).sum()))
    return math.fsum(sums) if all(map(math.isfinite, sums)) else math.nan


def gradient_norm(flats: Iterable[Tensor]) -> float:
    """Return the norm over all flat tensors; not a number if a value is not finite."""
    return math.sqrt(math.fsum(squared_norm(flat) for flat in flats))


def clip_factor(norm: float, limit: float | None) -> float:
    """Return the factor for gradients of this norm, as torch's clip_grad_norm_."""
    if limit is None:
        return 1.0
    return min(1.0, limit / (norm + 1e-6)) if math.isfinite(norm) else math.nan
