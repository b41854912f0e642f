"""Gradients in fewer bits: communication hooks for DistributedDataParallel."""

from ringleader.compression.hooks import Hook, hook

__all__ = ["Hook", "hook"]
