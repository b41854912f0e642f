"""Chooses the device for a model, and moves batches there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ringleader.errors import ConfigError
from ringleader.paramserver.tasks.samples import Batch


def pick_device(name: str = "auto") -> torch.device:
    """Return the device of this name; "auto": CUDA, else Apple's GPU, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as exc:
        reason = str(exc).splitlines()[0]
        raise ConfigError(
            f"--device {name}: cannot be used on this machine: {reason}"
        ) from exc
    return device


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move the tensors of a batch to ``device``."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(to_device(value, device) for value in batch)
    return batch
