"""Gradients in fewer bytes: by name, with or without DistributedDataParallel."""

from ringleader.compression.compressor import Compressor, compressor
from ringleader.compression.hooks import Hook, hook
from ringleader.compression.sharded import fsdp

__all__ = ["Compressor", "Hook", "compressor", "fsdp", "hook"]
