"""Running statistics of BatchNorm layers: one value for all members at each delivery.

Every quantum starts from the delivered statistics, and what it makes of them is added
with its weight. The next delivered statistics are the weighted mean over all quanta of
the step, whoever computed them; counters take the maximum. So a step moves them by the
layer's momentum once, however the batch was cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class NormBuffers:
    """The floating-point and integer statistics of all normalisation layers."""

    def __init__(self, model: nn.Module) -> None:
        self._floats: list[Tensor] = []
        self._counters: list[Tensor] = []
        for buffer in _statistics(model):
            is_float = buffer.is_floating_point()
            (self._floats if is_float else self._counters).append(buffer)
        self._delivered = [b.clone() for b in (*self._floats, *self._counters)]
        size = sum(b.numel() for b in self._floats)
        self.sums = torch.zeros(size, dtype=torch.float64)
        """Weighted sum of the statistics over the quanta that were done here."""
        self.counts = torch.zeros(len(self._counters), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._floats) + len(self._counters)

    def begin_quantum(self) -> None:
        """Restore the delivered statistics."""
        both = (*self._floats, *self._counters)
        for buffer, delivered in zip(both, self._delivered, strict=True):
            buffer.copy_(delivered)

    def end_quantum(self, weight: float) -> None:
        """Add what the quantum made of the statistics."""
        if self._floats:
            now = torch.cat([b.detach().double().cpu().view(-1) for b in self._floats])
            self.sums.add_(now, alpha=weight)
        for i, counter in enumerate(self._counters):
            self.counts[i] = max(int(self.counts[i]), int(counter.max()))

    def forget(self) -> None:
        """Drop what the quanta of this step have added."""
        self.sums.zero_()
        self.counts.zero_()

    def deliver(self, sums: Tensor, counts: Tensor, weight: float) -> None:
        """Set the statistics from the sums over all members."""
        start = 0
        for buffer in self._floats:
            mean = sums[start : start + buffer.numel()] / weight
            buffer.copy_(mean.view(buffer.shape))
            start += buffer.numel()
        for buffer, count in zip(self._counters, counts.tolist(), strict=True):
            buffer.fill_(count)
        self.remember()
        self.forget()

    def remember(self) -> None:
        """Take the statistics as they are now for the delivered ones."""
        both = (*self._floats, *self._counters)
        for buffer, delivered in zip(both, self._delivered, strict=True):
            delivered.copy_(buffer)


def _statistics(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, _NormBase):
            yield from (b for b in module.buffers(recurse=False))
