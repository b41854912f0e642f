"""Count, mean and variance per channel of a batch, and their merge over ranks.

A float32 mean of values near 1e4 can be off by 5e-4, which is large if the values
differ by only 1e-2. A mean is therefore kept as two numbers: ``anchor``, the rounded
mean, and ``offset``, the mean of the values minus the anchor. That subtraction is exact
for numbers so close to each other. ``spread`` is the sum of squared deviations from the
mean and never the difference of two large numbers. Ranks are merged by the parallel
update of Chan, Golub and LeVeque (1979), all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of C channels; all but the count have shape [C]."""

    count: Tensor
    """Values per channel, a scalar; rounded above 2**24, as every float32."""

    anchor: Tensor
    offset: Tensor
    """The mean is ``anchor + offset``; see the module docstring."""

    spread: Tensor
    """The sum of squared deviations from the mean."""

    def pack(self) -> Tensor:
        """Return one vector [3C + 1] to send."""
        return torch.cat((self.count.view(1), self.anchor, self.offset, self.spread))

    @classmethod
    def unpack(cls, rows: Tensor) -> Self:
        """Unpack any number of packed rows [..., 3C + 1]."""
        anchor, offset, spread = rows[..., 1:].chunk(3, dim=-1)
        return cls(rows[..., 0], anchor, offset, spread)

    def mean(self) -> Tensor:
        """Return the mean, rounded to one number."""
        return self.anchor + self.offset

    def variance(self, *, correction: int = 0) -> Tensor:
        """Return the variance; with ``correction=1`` the unbiased estimate."""
        return self.spread / (self.count - correction).clamp(min=1)

    def deviations(self, values: Tensor) -> Tensor:
        """Return ``values`` [N, C, ...] minus the mean, in the moments' dtype."""
        wide = values.to(self.anchor.dtype)
        centred = wide - per_channel(self.anchor, wide)
        return centred.sub_(per_channel(self.offset, wide))


def precision(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums of ``dtype``, the same on every device."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def per_channel(vector: Tensor, values: Tensor) -> Tensor:
    """Return a view of ``vector`` [C] that broadcasts over ``values`` [N, C, ...]."""
    return vector.view(1, -1, *[1] * (values.ndim - 2))


def sum_channels(values: Tensor) -> Tensor:
    """Return the sums [C] of ``values`` [N, C, ...]; zeros for an empty batch."""
    return values.sum(dim=[0, *range(2, values.ndim)])


def measure(values: Tensor) -> Moments:
    """Return the moments of this rank's ``values`` [N, C, ...]; N may be 0."""
    # torch.var_mean rounds the mean, and takes five times as long on a CPU.
    wide = values.to(precision(values.dtype))
    count = values.numel() // values.shape[1]
    divisor = max(count, 1)
    anchor = sum_channels(wide) / divisor
    centred = wide - per_channel(anchor, wide)
    offset = sum_channels(centred) / divisor
    spread = sum_channels(centred.sub_(per_channel(offset, wide)).square_())
    return Moments(anchor.new_tensor(count), anchor, offset, spread)


def merge(rows: Tensor) -> Moments:
    """Return the moments of all ranks' values together, from one packed row per rank.

    Ranks without values have no weight. If no rank has values, all moments are 0.
    """
    parts = Moments.unpack(rows)
    count = parts.count.sum()
    counts = parts.count.unsqueeze(1)
    weights = counts / count.clamp(min=1)
    anchor = (weights * parts.anchor).sum(0)
    distances = (parts.anchor - anchor) + parts.offset
    offset = (weights * distances).sum(0)
    between = (counts * (distances - offset).square()).sum(0)
    return Moments(count, anchor, offset, parts.spread.sum(0) + between)
