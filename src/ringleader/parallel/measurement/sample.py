"""``Sample``: a real micro-batch, to measure with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ringleader.errors import ConfigError
from ringleader.parallel.batch import Batch
from ringleader.parallel.microbatch_runner import loss_in, scalar
from ringleader.parallel.options import Loss, Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A real micro-batch, and how the model is run on it."""

    inputs: tuple[Any, ...]
    target: Any
    rows: int
    device: torch.device
    loss: Loss
    precision: Callable[[], AbstractContextManager[Any]]
    """Returns the context of forward and loss: autocast, or none."""


def example_rows(options: Options) -> int:
    """Return the rows of the example; ConfigError if there is none."""
    if options.example is None:
        text = "give example=(x, y), a batch as for step: the machines are measured"
        raise ConfigError(f"{options.strategy}: {text} with it")
    return Batch(tuple(options.example)).rows()


def sample_of(options: Options, rows: int, device: torch.device) -> Sample:
    """Return the first rows of the example."""
    assert options.example is not None  # example_rows was called

    def head(tensor: Tensor) -> Tensor:
        return tensor[:rows].to(device) if tensor.ndim else tensor.to(device)

    inputs = tree_map_only(Tensor, head, tuple(options.example))
    target = None
    if options.loss is not None:
        *inputs, target = inputs
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    if options.dtype is not None:
        precision = partial(torch.autocast, device.type, options.dtype)
    return Sample(
        inputs=tuple(inputs),
        target=target,
        rows=rows,
        device=device,
        loss=options.loss or (lambda output, _: scalar(loss_in(output))),
        precision=precision,
    )
