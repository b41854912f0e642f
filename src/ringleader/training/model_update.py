"""The update: a deterministic function of the state and of a delivered gradient sum."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ringleader.checkpoint.training_state import Stateful
from ringleader.errors import ConfigError
from ringleader.training.flat_buffers import FlatBuffers
from ringleader.training.gradient_norm import clip_factor, gradient_norm
from ringleader.training.norm_buffers import NormBuffers
from ringleader.training.sideband import Totals, members_of
from ringleader.training.state.replicated_state import ReplicatedState


class ModelUpdate:
    """Model, optimizer, scheduler and scaler of one member. User's thread only."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: Any = None,  # noqa: ANN401 - torch has no common base
        scaler: Any = None,  # noqa: ANN401
        clip: float | None = None,
    ) -> None:
        if isinstance(scheduler, ReduceLROnPlateau):
            text = "elastic: ReduceLROnPlateau needs a metric; use a schedule by steps"
            raise ConfigError(text)
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler
        self.buffers = FlatBuffers(trained_parameters(model, optimizer))
        self.norms = NormBuffers(model)
        self._clip = clip

    def replicated_state(
        self, others: dict[str, Stateful], extra: dict[str, Any] | None
    ) -> ReplicatedState:
        """Return the state that all members have in common."""
        return ReplicatedState(self.model, self.optimizer, others, extra)

    def restore_delivered(self) -> None:
        """Make the state that of the last delivered step, whatever quanta changed."""
        self.norms.begin_quantum()

    def apply(self, totals: Totals, version: int | None) -> None:
        """Apply the result ``version``; None: A itself, in a run of one member.

        A step without samples, as of streamed data that has ended, changes nothing.
        """
        if totals.weight:
            self._apply(totals, version)
        self.buffers.attach()
        self.buffers.zero()

    def _apply(self, totals: Totals, version: int | None) -> None:
        factor = 1 / totals.weight
        limit = None if self._clip is None else self._clip_factor(version, factor)
        if limit is not None and self.scaler is None:
            factor *= limit
        if version is None:
            self.buffers.scale(factor)
        else:
            self.buffers.take_result(version, factor)
        self._step_optimizer(totals.used, limit)
        if self.scheduler is not None:
            self.scheduler.step()
        self.norms.deliver(totals.sums, totals.counts, totals.weight)

    def _clip_factor(self, version: int | None, factor: float) -> float:
        flats = self.buffers.total(version)
        if self.scaler is not None:
            factor /= self.scaler.get_scale()
        return clip_factor(gradient_norm(flats.values()) * factor, self._clip)

    def _step_optimizer(self, used: bytes, limit: float | None) -> None:
        # A parameter that got no gradient on any member has none, as in plain torch.
        has_gradient = set(members_of(used))
        for i, parameter in enumerate(self.buffers.parameters):
            if i not in has_gradient:
                parameter.grad = None
        if self.scaler is None:
            self.optimizer.step()
            return
        self.scaler.unscale_(self.optimizer)
        if limit is not None:
            self.buffers.scale(limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def trained_parameters(model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters that the optimizer changes, in the model's order."""
    chosen = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = [p for p in model.parameters() if id(p) in chosen and p.requires_grad]
    if len({id(p) for p in model.parameters()} & chosen) < len(chosen):
        text = "elastic: the optimizer has parameters that the model does not have"
        raise ConfigError(f"{text}; make it from model.parameters()")
    if not found:
        raise ConfigError("elastic: the optimizer trains no parameter of the model")
    return found
