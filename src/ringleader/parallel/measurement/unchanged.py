"""``unchanged``: runs a model for measuring, without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers and the random state at the end.

    Batch norm counts batches, and dropout draws numbers; a run that only measures must
    not change what the training computes.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {b.device for b in model.buffers()} | {
        p.device for p in model.parameters()
    }
    others = [device for device in devices if device.type != "cpu"]
    kind = others[0].type if others else None
    with torch.random.fork_rng(others, device_type=kind or "cuda"):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
