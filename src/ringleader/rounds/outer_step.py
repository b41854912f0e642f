"""The outer step: moves the parameters of a round by the mean of its differences.

It is float32 arithmetic of numpy, one operation at a time. The results are the same
bits on every machine, whatever device the local steps run on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import ConfigError

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OuterStep:
    """Settings of the outer step: Nesterov's momentum, or none."""

    rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not (0 < self.rate <= 10 and 0 <= self.momentum < 1):
            text = f"not {self.rate:g} and {self.momentum:g}"
            limits = "rate must be above 0 up to 10 and momentum from 0 to below 1"
            raise ConfigError(f"outer step: {limits}, {text}")

    @property
    def has_momentum(self) -> bool:
        """True if it has state that lives as long as the training."""
        return self.momentum > 0

    def apply(self, parameters: Vector, velocity: Vector, gradient: Vector) -> None:
        """Move ``parameters`` and ``velocity`` in place by the outer gradient.

        v = momentum v + g; parameters -= rate (g + momentum v). ``velocity`` is not
        used without a momentum, and may be empty.
        """
        step = gradient.copy()
        if self.has_momentum:
            factor = np.float32(self.momentum)
            np.multiply(velocity, factor, velocity)
            np.add(velocity, gradient, velocity)
            np.add(step, velocity * factor, step)
        np.multiply(step, np.float32(self.rate), step)
        np.subtract(parameters, step, parameters)


NESTEROV = OuterStep()
"""For DiLoCo (Douillard et al. 2023)."""
PLAIN = OuterStep(rate=1.0, momentum=0.0)
"""For SparseLoCo (Sarfi et al. 2025), whose error feedback replaces the momentum."""
