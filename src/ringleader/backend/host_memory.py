"""``check``: refuses copies of an accelerator's tensors to the host, if a user does.

Between GPUs with a faster way of their own, a copy through host memory is a mistake of
the configuration that nobody would notice but for the time. RINGLEADER_HOST_STAGING=0
makes it an error.
"""

from __future__ import annotations

from torch import Tensor

from ringleader import settings
from ringleader.errors import ConfigError


def check(tensor: Tensor, what: str) -> None:
    """Raise ConfigError if ``tensor`` would be copied to the host and must not."""
    if not tensor.is_cpu:
        require_allowed(f"{what} of a tensor on {tensor.device}")


def require_allowed(what: str) -> None:
    """Raise ConfigError if tensors of accelerators may not be copied to the host."""
    if not settings.stages_on_host():
        raise ConfigError(
            f"{what} would pass through host memory, which RINGLEADER_HOST_STAGING=0 "
            "refuses; use NCCL for it, or unset the variable on all ranks"
        )
