"""The hook of a model that is wrapped in DistributedDataParallel.

A hook from the environment is registered at the first forward; a checkpoint is loaded
before that, so the model knows the hook from the beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from ringleader.compression.comm_hook import Hook
    from ringleader.compression.compressor import Compressor

_PENDING = "_ringleader_pending_hook"


def set_pending(model: nn.Module, hook: Hook | None) -> None:
    """Note the hook that will be registered, or None when that is decided."""
    setattr(model, _PENDING, hook)


def compressor_of(model: nn.Module | None) -> Compressor | None:
    """Return the compressor that keeps the residuals of a model's gradients."""
    registered = [hook for hook, _ in getattr(model, "_comm_hooks", [])]
    for hook in [*registered, getattr(model, _PENDING, None)]:
        compressor = getattr(hook, "compressor", None)
        if compressor is not None:
            found: Compressor = compressor
            return found
    return None
