"""The interface between a trainer and a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn

from ringleader.parallel.batch import Batch


class Runner(Protocol):
    """A model as a strategy has placed it, and how it computes gradients."""

    @property
    def model(self) -> nn.Module:
        """The model as this rank holds it; the optimizer gets its parameters."""
        ...

    @property
    def norm_parameters(self) -> Sequence[nn.Parameter]:
        """Parameters whose gradients this rank adds to the norm.

        A parameter that several stages of a pipeline share counts on one rank.
        """
        ...

    @property
    def norm_groups(self) -> Sequence[dist.ProcessGroup]:
        """Groups whose ranks hold different plain parameters: stages of a pipeline."""
        ...

    def predict(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:  # noqa: ANN401  # whatever a model returns
        """Return the model's output for this rank's batch, without gradients."""
        ...

    def run(self, batch: Batch, scale: float, step: int) -> Tensor:
        """Compute the gradients of one batch; return the loss.

        Afterwards ``grad`` of each parameter is the gradient of the mean loss over the
        batches of all ranks, times ``scale``. The loss is that mean, without ``scale``
        and without gradient, the same on all ranks. Random numbers that ranks have in
        common follow from ``step``, the number of steps before this one.
        """
        ...
