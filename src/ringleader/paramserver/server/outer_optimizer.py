"""The optimizer of the server that applies the mean of differences of local steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from ringleader.errors import ConfigError
from ringleader.paramserver.server.plan import Plan

_ADAM_BETAS = (0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """Settings of the optimizer that applies averaged differences of local steps."""

    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    adam: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.rate <= 10 and 0 <= self.momentum < 1):
            text = f"not {self.rate:g} and {self.momentum:g}"
            limits = "rate must be above 0 up to 10 and momentum from 0 to below 1"
            raise ConfigError(f"outer optimizer: {limits}, {text}")
        if self.nesterov and not self.momentum:
            raise ConfigError("outer optimizer: nesterov needs a momentum, as in 0.9")

    def make(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer; with the defaults it is plain averaging."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if self.adam:
            return torch.optim.Adam(trained, lr=self.rate, betas=_ADAM_BETAS)
        return torch.optim.SGD(
            trained, lr=self.rate, momentum=self.momentum, nesterov=self.nesterov
        )


KINDS = {
    "average": OuterOptimizer(),
    "sgd": OuterOptimizer(rate=0.7, momentum=0.9),
    "nesterov": OuterOptimizer(rate=0.7, momentum=0.9, nesterov=True),
    "adam": OuterOptimizer(rate=0.003, adam=True),
}
"""The optimizers by name."""


def outer_optimizer(name: str, plan: Plan, codec: str) -> OuterOptimizer:
    """Return the optimizer called ``name``; empty: the one that suits the plan.

    ``name`` may end with a rate and a momentum, as in nesterov:1:0.5.

    In rounds mode that is Nesterov (DiLoCo). With the codec sparseloco it is plain
    averaging, because error feedback replaces the momentum. Where nobody waits for
    others it is Adam, which bears late updates better.
    """
    if not name and plan.is_local:
        name = "average" if codec == "sparseloco" else "nesterov"
        name = "adam" if plan.waits_for_nobody else name
    kind, *numbers = (name or "average").split(":")
    if kind not in KINDS:
        raise ConfigError(f"--outer: {kind!r} is none of {', '.join(KINDS)}")
    return _with_numbers(KINDS[kind], numbers) if numbers else KINDS[kind]


def _with_numbers(chosen: OuterOptimizer, numbers: list[str]) -> OuterOptimizer:
    """Return an optimizer with the rate, and the momentum, of the user."""
    try:
        rate, momentum = [*map(float, numbers), chosen.momentum][:2]
    except ValueError:
        rate = momentum = math.nan
    is_useless = len(numbers) == 2 and not chosen.momentum
    if math.isnan(rate + momentum) or is_useless or len(numbers) > 2:
        usage = "use KIND:RATE, or nesterov:RATE:MOMENTUM as in nesterov:1:0.5"
        raise ConfigError(f"--outer: {':'.join(numbers)!r}: {usage}")
    return replace(chosen, rate=rate, momentum=momentum)
