"""OuterState: the parameters at the start of a round, and the momentum of rounds.

They are equal on all members and change only when a round is delivered. The local steps
of a member change its model; the next round begins from these parameters again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ringleader.errors import ConfigError
from ringleader.rounds.outer_step import OuterStep


class OuterState:
    """A copy of the model in main memory, with a velocity for each parameter."""

    def __init__(
        self, model: nn.Module, parameters: Sequence[Tensor], outer: OuterStep
    ) -> None:
        self.model = model
        """The model of the round, which is part of the replicated state."""
        self.parameters = list(parameters)
        """Its trained parameters, in the order of the gradient buffers."""
        self._outer = outer
        self._velocities = [
            torch.zeros_like(p) for p in self.parameters if outer.has_momentum
        ]

    @classmethod
    def of(cls, model: nn.Module, trained: Sequence[Tensor], outer: OuterStep) -> Self:
        """Copy ``model``, whose parameters ``trained`` are float32."""
        names = {id(p): name for name, p in model.named_parameters()}
        for parameter in trained:
            if parameter.dtype is not torch.float32:
                text = f"{names[id(parameter)]} is {parameter.dtype}"
                raise ConfigError(f"elastic: low_comm needs float32 parameters; {text}")
        made = copy.deepcopy(model).cpu()
        named = dict(made.named_parameters())
        return cls(made, [named[names[id(p)]].detach() for p in trained], outer)

    @torch.no_grad()
    def load_into(self, model: nn.Module) -> None:
        """Set the whole model to its state at the start of the round."""
        for target, source in zip(_tensors(model), _tensors(self.model), strict=True):
            target.copy_(source)

    @torch.no_grad()
    def take_buffers(self, model: nn.Module) -> None:
        """Take the buffers of ``model``, which were delivered with the round."""
        for target, source in zip(self.model.buffers(), model.buffers(), strict=True):
            target.copy_(source)

    @torch.no_grad()
    def differences(
        self, moved: Sequence[Tensor], weight: float, out: Sequence[Tensor]
    ) -> None:
        """Write ``weight`` times how far parameters have moved in this round."""
        for start, now, target in zip(self.parameters, moved, out, strict=True):
            torch.sub(start.to(now.device), now, out=target).mul_(weight)

    def apply(self, sums: Sequence[Tensor], weight: float) -> None:
        """Make the outer step with the sum of all members' differences."""
        nothing = np.zeros(0, np.float32)
        for i, (parameter, total) in enumerate(zip(self.parameters, sums, strict=True)):
            gradient = total.cpu().numpy() * np.float32(1 / weight)
            velocity = self._velocities[i].numpy() if self._velocities else nothing
            self._outer.apply(parameter.numpy(), velocity, gradient)

    def state_dict(self) -> dict[str, Any]:
        """Return the velocities; the parameters are those of ``model``."""
        return {str(i): velocity for i, velocity in enumerate(self._velocities)}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Take the velocities of another member."""
        for i, velocity in enumerate(self._velocities):
            velocity.copy_(values[str(i)])


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
