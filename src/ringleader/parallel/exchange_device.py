"""``exchange_device``: where tensors must be so that a group can send them."""

from __future__ import annotations


def exchange_device(device: str, backends: str) -> str:
    """Return the device on which tensors of ``device`` are sent: itself or the CPU.

    ``backends`` is torch's configuration of a group, such as "cpu:gloo,cuda:nccl".
    """
    devices = [entry.split(":")[0] for entry in backends.split(",")]
    return "cpu" if device not in devices and "cpu" in devices else device
