"""RoundUpdate: applies a round of local steps by one outer step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ringleader.checkpoint.training_state import Stateful
from ringleader.rounds.outer_step import OuterStep
from ringleader.training.low_comm.outer_state import OuterState
from ringleader.training.model_update import ModelUpdate
from ringleader.training.sideband import Totals
from ringleader.training.state.replicated_state import ReplicatedState


class RoundUpdate(ModelUpdate):
    """Makes local steps with the user's optimizer, and the outer step of each round.

    The replicated state is that of the outer step. The optimizer's own state stays on
    its member, and a newcomer begins without any.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        outer: OuterStep,
        *,
        scheduler: Any = None,  # noqa: ANN401 - torch has no common base
        scaler: Any = None,  # noqa: ANN401
        clip: float | None = None,
    ) -> None:
        super().__init__(
            model, optimizer, scheduler=scheduler, scaler=scaler, clip=clip
        )
        self.outer = OuterState.of(model, self.buffers.parameters, outer)

    def replicated_state(
        self, others: dict[str, Stateful], extra: dict[str, Any] | None
    ) -> ReplicatedState:
        """Return the state that all members have in common."""
        # The optimizer of the copy has no state; it only names what is trained.
        unused = torch.optim.SGD(self.outer.model.parameters(), lr=1.0)
        return ReplicatedState(
            self.outer.model, unused, {**others, "outer": self.outer}, extra
        )

    def begin_round(self) -> None:
        """Set the model to its state at the beginning of the round."""
        self.outer.load_into(self.model)
        self.norms.remember()

    def local_step(self, used: set[int]) -> None:
        """Make one step of the user's optimizer with the gradients of one quantum."""
        for i, parameter in enumerate(self.buffers.parameters):
            if i not in used:
                parameter.grad = None
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self.buffers.parameters, self._clip)
        self.optimizer.step()
        self.buffers.attach()

    def contribute(self, weight: float) -> None:
        """Write the contribution: ``weight`` times how far the model has moved."""
        self.outer.differences(self.buffers.parameters, weight, self.buffers.views)

    def restore_delivered(self) -> None:
        """Do nothing: the state of a round is a copy that quanta do not change."""

    def apply(self, totals: Totals, version: int | None) -> None:
        """Apply the round ``version``; None: A itself, in a run of one member.

        A round without samples, as of shards that are empty, changes nothing.
        """
        if totals.weight:
            self._apply(totals, version)
        self.begin_round()
        self.buffers.attach()
        self.buffers.zero()

    def _apply(self, totals: Totals, version: int | None) -> None:
        sums = self.buffers.views_of(self.buffers.total(version))
        self.outer.apply(sums, totals.weight)
        if self.scheduler is not None:
            self.scheduler.step()
        self.norms.deliver(totals.sums, totals.counts, totals.weight)
        self.outer.take_buffers(self.model)
