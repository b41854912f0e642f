"""The task of long runs with kills: what one process computes must stay comparable."""

from __future__ import annotations

import numpy as np

from tests.kit.endless_task import Reference

NUDGE, NUM_STEPS = 1e-6, 2000


def test_a_small_difference_does_not_grow_without_limit() -> None:
    """Otherwise rounding alone fails an hour of elastic_soak.py."""
    one, other = Reference(), Reference()
    for weights in other._weights:
        weights += NUDGE
    difference = np.abs(one.parameters(NUM_STEPS) - other.parameters(NUM_STEPS)).max()
    assert difference < 100 * NUDGE
