"""The training that is simulated: integers in float64, so that sums are exact.

A result has three buckets. Bucket 0 is the sideband: the number of quanta. The others
are quantized with error feedback, so two attempts at one step differ, as they do with a
real codec: a member that applied another attempt than the others has another state.
"""

from __future__ import annotations

from collections.abc import Iterable

NUM_BUCKETS = 3
NUM_QUANTA = 12
"""Quanta of one step."""

Values = tuple[float, ...]
"""One number per bucket."""

ZERO: Values = (0.0,) * NUM_BUCKETS
_MODULUS = 1_000_003.0
_QUANTUM = 8.0


def gradient(state: Values, quanta: Iterable[int]) -> Values:
    """Return the summed gradient of some quanta at a state."""
    num = first = second = 0.0
    for quantum in quanta:
        num += 1
        first += (state[1] * 31 + quantum * 17) % 97
        second += (state[2] * 13 + quantum * 29) % 89
    return (num, first, second)


def quantize(values: Values, residual: Values) -> tuple[Values, Values]:
    """Return what is sent for ``values`` and the residual that is left."""
    wanted = [v + r for v, r in zip(values, residual, strict=True)]
    sent = [wanted[0], *(w - w % _QUANTUM for w in wanted[1:])]
    left = tuple(w - s for w, s in zip(wanted, sent, strict=True))
    return tuple(sent), left


def apply(state: Values, result: Values) -> Values:
    """Return the state after the update with a result."""
    return tuple((s * 3 + r) % _MODULUS for s, r in zip(state, result, strict=True))
