"""Contribution: the sum of the gradients of this member's quanta."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.training.data.balance import Flag, Report
from ringleader.training.local_step import LocalStep
from ringleader.training.model_update import ModelUpdate
from ringleader.training.sideband import Entry, bitmap


class Contribution:
    """What this member adds to the running step. User's thread only.

    ``on_ready`` is called with the position of a parameter whose gradient is complete,
    while the last quantum runs backward (on threads of autograd).
    """

    def __init__(self, update: ModelUpdate) -> None:
        self.update = update
        self.step = LocalStep()
        self.on_ready: Callable[[int], None] | None = None
        self._is_backward = False

    def attach(self) -> None:
        """Allocate the buffers and watch the gradients of all parameters."""
        self.update.buffers.allocate()
        for i, parameter in enumerate(self.update.buffers.parameters):
            watch: Any = parameter.register_post_accumulate_grad_hook
            watch(partial(self._accumulated, i))

    def begin_quantum(self) -> None:
        """Prepare the model for a quantum."""
        self.update.norms.begin_quantum()

    def backward(self, loss: Tensor, weight: float) -> None:
        """Add the gradient of ``weight`` times ``loss``."""
        scaled: Any = loss * weight
        if self.update.scaler is not None:
            scaled = self.update.scaler.scale(scaled)
        self.update.buffers.attach()
        self._is_backward = True
        try:
            scaled.backward()
        finally:
            self._is_backward = False
            self.on_ready = None

    def end_quantum(self, weight: float, seconds: float) -> None:
        """Record that the current quantum is in the contribution."""
        self.update.norms.end_quantum(weight)
        self.step.finish(weight, seconds)

    def seal(self) -> None:
        """Complete the contribution before it is reduced; a gradient sum always is."""

    def entry(self, node: NodeId, micro_batch: int, flags: Flag) -> Entry:
        """Return the sideband entry of this member."""
        norms = self.update.norms
        num_parameters = len(self.update.buffers.parameters)
        return Entry(
            node=node,
            quanta=self.step.quanta,
            weight=self.step.weight,
            report=Report(self.step.quantum_s(micro_batch), flags),
            used=bitmap(self.step.used, num_parameters),
            sums=norms.sums,
            counts=norms.counts,
        )

    def drop(self) -> None:
        """Forget the contribution: it is void, or of a state that was replaced."""
        self.step.clear()
        self.update.buffers.attach()
        self.update.buffers.zero()
        self.update.norms.remember()
        self.update.norms.forget()

    def _accumulated(self, index: int, parameter: Tensor) -> None:
        if not self._is_backward:
            text = (
                "elastic: gradients come from run.backward(loss), not loss.backward()"
            )
            raise ConfigError(text)
        self.step.used.add(index)
        if self.on_ready is not None:
            self.on_ready(index)
