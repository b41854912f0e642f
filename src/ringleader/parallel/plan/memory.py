"""Memory that the stages of a rank need, and the sentences about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringleader.parallel.plan.profile import LayerProfile
from ringleader.parallel.plan.schedule import Schedule

Span = tuple[int, int]
"""The layers ``begin`` to ``end - 1`` of a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that a rank needs during a step."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    """For all micro-batches that are alive at a time, and for receive buffers."""

    @property
    def total(self) -> int:
        """The sum of all."""
        return self.parameters + self.gradients + self.optimizer + self.activations

    def __str__(self) -> str:
        """Return the arithmetic."""
        return (
            f"{size(self.total)} = parameters {size(self.parameters)} + gradients "
            f"{size(self.gradients)} + optimizer {size(self.optimizer)} + activations "
            f"{size(self.activations)}"
        )


def rank_need(
    layers: Sequence[LayerProfile], spans: Sequence[Span], schedule: Schedule, rank: int
) -> MemoryNeed:
    """Return what a rank needs for its stages.

    Torch keeps a buffer for the input, and one for the gradient of the output, of every
    micro-batch of the step.
    """
    mine = [layer for begin, end in spans for layer in layers[begin:end]]
    kept = max(
        sum(layer.activation_bytes for layer in layers[begin:end])
        for begin, end in spans
    )
    buffers = 0
    for begin, end in spans:
        buffers += layers[begin].input_bytes if begin > 0 else 0
        buffers += layers[end - 1].output_bytes if end < len(layers) else 0
    return MemoryNeed(
        parameters=sum(layer.parameter_bytes for layer in mine),
        gradients=sum(layer.gradient_bytes for layer in mine),
        optimizer=sum(layer.optimizer_bytes for layer in mine),
        activations=schedule.live_microbatches(rank) * kept
        + schedule.microbatches * buffers,
    )


def size(num_bytes: int) -> str:
    """Return a number of bytes for people.

    >>> size(3 << 29), size(1536), size(5 << 20)
    ('1.50 GiB', '1.5 KiB', '5.0 MiB')
    """
    if num_bytes >= 1 << 30:
        return f"{num_bytes / (1 << 30):.2f} GiB"
    if num_bytes >= 1 << 20:
        return f"{num_bytes / (1 << 20):.1f} MiB"
    return f"{num_bytes / (1 << 10):.1f} KiB"
