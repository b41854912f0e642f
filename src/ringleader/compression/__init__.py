"""Gradient compression by name, with or without DistributedDataParallel."""

from ringleader.compression.comm_hook import Hook, hook
from ringleader.compression.compressor import Compressor, compressor
from ringleader.compression.fsdp_reduce_scatter import fsdp

__all__ = ["Compressor", "Hook", "compressor", "fsdp", "hook"]


def __dir__() -> list[str]:
    """Return the public names without the submodules."""
    return list(__all__)
