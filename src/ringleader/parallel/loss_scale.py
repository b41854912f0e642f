"""The factor that keeps small fp16 gradients from becoming zero."""

from __future__ import annotations

from dataclasses import dataclass

GROWTH_STEPS = 2000
"""Steps without overflow after which the factor is doubled, as in torch.amp."""


@dataclass(slots=True)
class LossScale:
    """Halved when a gradient overflows, doubled when none has for a while.

    torch.amp.GradScaler looks at the gradients of one rank. Here the norm of the whole
    gradient decides, so that all ranks skip the same steps, whatever is sharded.
    """

    value: float = 65536.0
    good_steps: int = 0

    def overflowed(self) -> None:
        """Note a step that was skipped."""
        self.value = max(self.value / 2, 1.0)
        self.good_steps = 0

    def succeeded(self) -> None:
        """Note a step whose gradients were finite."""
        self.good_steps += 1
        if self.good_steps >= GROWTH_STEPS:
            self.value *= 2
            self.good_steps = 0
