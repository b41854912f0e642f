"""The number of local steps in a round, their division, and the weight of late ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

MAX_EXPOSED = 0.05
"""Share of a round's time that may be spent on communication."""
AGE_DECAY = 0.3
"""A difference that is t rounds late counts exp(-AGE_DECAY t) of its tokens."""
MAX_AGE = 8
"""Rounds after which a late difference is refused; its weight would be 0.07."""
MAX_STEPS = 10_000


def steps_for(step_s: float, exchange_s: float, *, least: int = 1) -> int:
    """Return the fewest local steps with at most MAX_EXPOSED of the time in exchanges.

    A round of H steps takes H ``step_s`` + ``exchange_s``. ``least`` is the shortest
    round to return.
    """
    if step_s <= 0:
        return MAX_STEPS if exchange_s > 0 else least
    needed = exchange_s * (1 - MAX_EXPOSED) / (MAX_EXPOSED * step_s)
    return max(least, min(MAX_STEPS, math.ceil(needed - 1e-9)))


class WorkerTimes(NamedTuple):
    """What was measured of one worker."""

    step_s: float
    """Time of one local step."""
    exchange_s: float
    """Time of a round that is not spent on steps: to send, to receive, to encode."""


def mean_steps(
    workers: Sequence[WorkerTimes], *, least: int = 1, most: int = MAX_STEPS
) -> int:
    """Return the mean number of local steps of rounds that take all the same time.

    They are as short as they can be with at most MAX_EXPOSED of anybody's time in
    exchanges, within ``least`` and ``most``.
    """
    known = [each for each in workers if each.step_s > 0]
    if not known:
        return least
    round_s = max(steps_for(s, exchange_s) * s + exchange_s for s, exchange_s in known)
    total = sum((round_s - exchange_s) / s for s, exchange_s in known)
    return max(least, min(most, math.ceil(total / len(known) - 1e-9)))


def split_by_speed(total: int, speeds: Sequence[float]) -> list[int]:
    """Split ``total`` steps in proportion to ``speeds``; everybody gets at least one.

    A speed of 0 is unknown, and counts as the mean of the known ones. The parts sum up
    to ``total``, or to one per member if that is more.
    """
    known = [speed for speed in speeds if speed > 0]
    usual = sum(known) / len(known) if known else 1.0
    filled = [speed if speed > 0 else usual for speed in speeds]
    exact = [total * speed / sum(filled) for speed in filled]
    parts = [max(1, math.floor(share)) for share in exact]
    order = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in order[: max(0, total - sum(parts))]:
        parts[i] += 1
    while sum(parts) > max(
        total, len(parts)
    ):  # members with the minimum of one step took more than their share
        parts[parts.index(max(parts))] -= 1
    return parts


def late_weight(age: int) -> float:
    """Return the weight of a difference that began ``age`` rounds ago; 0: refused."""
    if not 0 <= age <= MAX_AGE:
        return 0.0
    return math.exp(-AGE_DECAY * age)
