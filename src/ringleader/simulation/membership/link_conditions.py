"""How messages fare between nodes of the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Chances per message. A TCP link is ``is_ordered`` and loses nothing."""

    delay_s: float = 0.002
    """The usual time from one node to the other; each message takes half to double."""
    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    """How many take up to ``late_s`` longer."""
    late_s: float = 0.0
    is_ordered: bool = True


CALM = Weather()
"""A quiet LAN."""


def draw(rng: Random) -> Weather:
    """The weather of one seed: often a quiet LAN, sometimes much worse."""
    kind = rng.random()
    if kind < 0.3:
        return Weather(delay_s=rng.uniform(0.0001, 0.03))
    return Weather(
        delay_s=rng.uniform(0.0002, 0.05),
        loss=rng.choice((0.0, 0.01, 0.05, 0.15)),
        double=rng.choice((0.0, 0.02, 0.1)),
        late=rng.choice((0.0, 0.01, 0.05)),
        late_s=rng.choice((0.1, 1.0, 4.0)),
        is_ordered=rng.random() < 0.4,
    )
