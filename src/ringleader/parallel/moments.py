"""Count, mean and spread of each channel of a batch, measured here, merged over ranks.

A float32 mean of values near 1e4 can be off by 5e-4, which is much where the values
themselves differ by 1e-2. So a mean is kept as two numbers: an ``anchor``, the rounded
mean, and an ``offset``, the mean of what is left when the anchor is subtracted; that is
exact for numbers this close. The spread is the sum of squared deviations from the
mean and never the difference of two large numbers. Merging is the parallel update of
Chan, Golub and LeVeque (1979), for all ranks at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Moments:
    """Of C channels; all but the count have shape [C]."""

    count: Tensor
    """Values per channel, a scalar. Above 2**24 it is rounded, as any float32 is."""

    anchor: Tensor
    offset: Tensor
    """The mean is ``anchor + offset``; see the top of this file."""

    spread: Tensor
    """The sum of squared deviations from the mean."""

    def pack(self) -> Tensor:
        """One vector [3C + 1] for the exchange."""
        return torch.cat((self.count.view(1), self.anchor, self.offset, self.spread))

    @classmethod
    def unpack(cls, rows: Tensor) -> Self:
        """The reverse of ``pack``, for any number of rows [..., 3C + 1]."""
        anchor, offset, spread = rows[..., 1:].chunk(3, dim=-1)
        return cls(rows[..., 0], anchor, offset, spread)

    def mean(self) -> Tensor:
        """The mean as one number, rounded."""
        return self.anchor + self.offset

    def variance(self, *, correction: int = 0) -> Tensor:
        """Of the batch; with ``correction=1`` the unbiased estimate."""
        return self.spread / (self.count - correction).clamp(min=1)

    def deviations(self, values: Tensor) -> Tensor:
        """``values`` [N, C, ...] less the mean: a new tensor in our precision."""
        wide = values.to(self.anchor.dtype)
        centred = wide - per_channel(self.anchor, wide)
        return centred.sub_(per_channel(self.offset, wide))


def precision(dtype: torch.dtype) -> torch.dtype:
    """What values of ``dtype`` are added up in, the same on every device."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def per_channel(vector: Tensor, values: Tensor) -> Tensor:
    """A view of ``vector`` [C] that broadcasts over ``values`` [N, C, ...]."""
    return vector.view(1, -1, *[1] * (values.ndim - 2))


def sum_channels(values: Tensor) -> Tensor:
    """The sums [C] of ``values`` [N, C, ...]; zeros for an empty batch."""
    return values.sum(dim=[0, *range(2, values.ndim)])


def measure(values: Tensor) -> Moments:
    """The moments of this rank's ``values`` [N, C, ...]; N may be 0."""
    # Not torch.var_mean: it rounds the mean, and on a CPU it takes five times as long.
    wide = values.to(precision(values.dtype))
    count = values.numel() // values.shape[1]
    divisor = max(count, 1)
    anchor = sum_channels(wide) / divisor
    centred = wide - per_channel(anchor, wide)
    offset = sum_channels(centred) / divisor
    spread = sum_channels(centred.sub_(per_channel(offset, wide)).square_())
    return Moments(anchor.new_tensor(count), anchor, offset, spread)


def merge(rows: Tensor) -> Moments:
    """The moments of all ranks' values together, from one packed row per rank.

    Ranks without values weigh nothing. Without any value at all everything is 0.
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
