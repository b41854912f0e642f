"""RoundContribution: local steps on this member's quanta, and their total effect."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ringleader.training.contribution import Contribution
from ringleader.training.round_update import RoundUpdate


class RoundContribution(Contribution):
    """What this member adds to a round. User's thread only.

    Each quantum is one step of the user's optimizer. After the loss of another member
    this one continues from its current model with the quanta that it takes over.
    """

    def __init__(self, update: RoundUpdate) -> None:
        super().__init__(update)
        self._rounds = update

    def begin_quantum(self) -> None:
        """Begin the round with the first quantum."""
        if not self.step.done:
            self._rounds.begin_round()

    def backward(self, loss: Tensor, weight: float) -> None:
        """Make a step of the optimizer with the gradient of ``loss``."""
        self.on_ready = None  # nothing leaves before the round ends
        self._rounds.buffers.attach()
        self._rounds.buffers.zero()
        earlier, self.step.used = self.step.used, set()
        self._is_backward = True
        step: Any = loss
        try:
            step.backward()
        finally:
            self._is_backward = False
        self._rounds.local_step(self.step.used)
        self.step.used |= earlier

    def end_quantum(self, weight: float, seconds: float) -> None:
        """Record that the current quantum is in the contribution."""
        self.step.finish(weight, seconds)
        # The statistics of the last quantum, with the weight of all of them.
        self._rounds.norms.forget()
        self._rounds.norms.end_quantum(self.step.weight)

    def seal(self) -> None:
        """Write the contribution of all quanta that were done."""
        if self.step.done:
            self._rounds.contribute(self.step.weight)
        else:
            self._rounds.buffers.zero()

    def drop(self) -> None:
        """Forget the contribution, and go back to the beginning of the round."""
        super().drop()
        self._rounds.begin_round()
