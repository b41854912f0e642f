"""LinkConditions: delay, loss and reordering of messages between simulated nodes."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConditions:
    """Probabilities per message. A TCP link is ``is_ordered`` and loses nothing."""

    delay_s: float = 0.002
    """Typical one-way delay; each message takes between half and twice of it."""
    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    """Probability of an additional delay of up to ``late_s``."""
    late_s: float = 0.0
    is_ordered: bool = True


QUIET_LAN = LinkConditions()


def random_conditions(rng: Random) -> LinkConditions:
    """Draw the conditions of one seed: often a quiet LAN, sometimes much worse."""
    kind = rng.random()
    if kind < 0.3:
        return LinkConditions(delay_s=rng.uniform(0.0001, 0.03))
    return LinkConditions(
        delay_s=rng.uniform(0.0002, 0.05),
        loss=rng.choice((0.0, 0.01, 0.05, 0.15)),
        double=rng.choice((0.0, 0.02, 0.1)),
        late=rng.choice((0.0, 0.01, 0.05)),
        late_s=rng.choice((0.1, 1.0, 4.0)),
        is_ordered=rng.random() < 0.4,
    )
