"""Fingerprint: a digest of everything that decides which bits a machine computes.

Machines with equal fingerprints form an exact class: from equal states and gradients
they compute equal bits. Others form a mixed class, whose low bits drift apart.
"""

from __future__ import annotations

import hashlib
import platform

import torch
from torch import Tensor
from torch.optim import Optimizer

from ringleader.training.state.optimizer_part import flags


def fingerprint(tensors: list[Tensor], optimizer: Optimizer) -> bytes:
    """Return a digest of processor, devices, torch version and optimizer code."""
    kinds = sorted({_kind(tensor.device) for tensor in tensors})
    text = [
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        torch.__version__.partition("+")[0],
        *kinds,
        type(optimizer).__qualname__,
        *flags(optimizer, implementation=True),
    ]
    return hashlib.sha256("\n".join(text).encode()).digest()


def _kind(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    return device.type
