"""The model that is trained: two parameters, whole numbers, so that sums are exact.

Gradients are quantized with error feedback, so two attempts at one step differ, as they
do with a real codec: a member that applied another attempt has another model.
"""

from __future__ import annotations

from typing import Final

from ringleader.training.data.data_state import DataSpec, Quantum

Values = tuple[float, float]
"""One number for each of the two gradient buckets."""

NUM_BUCKETS: Final = 3
"""A result has so many: bucket 0 is the sideband, the others are of the gradient."""

SPEC: Final = DataSpec(num_samples=101, global_batch=23, micro_batch=2, epochs=None)
"""An epoch has five steps; the last one is short, and so is the last quantum."""

_MODULUS: Final = 1_000_003.0
_UNIT: Final = 8.0


def gradient(model: Values, quantum: Quantum) -> Values:
    """Return the summed gradient of the samples of a quantum."""
    first = second = 0.0
    for begin, end in quantum.intervals:
        for position in range(begin, end):
            first += (model[0] * 31 + position * 17 + quantum.epoch) % 97
            second += (model[1] * 13 + position * 29 + quantum.epoch) % 89
    return first, second


def quantize(value: float) -> float:
    """Return what the codec sends for a value."""
    return value - value % _UNIT


def apply(model: Values, result: Values) -> Values:
    """Return the model after the update with a result."""
    first, second = ((m * 3 + r) % _MODULUS for m, r in zip(model, result, strict=True))
    return first, second
