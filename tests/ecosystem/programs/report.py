"""What a program found, for the test that compares it with the same run on Gloo."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def report(**found: Any) -> None:
    """Write the results of this rank, and whose group it has used."""
    group: Any = dist.group.WORLD
    found["backend"] = dist.get_backend()
    found["group"] = type(group).__name__
    path = Path(os.environ["ECOSYSTEM_OUT"], f"rank{dist.get_rank()}.json")
    path.write_text(json.dumps(found))


def make_group_first() -> None:
    """Do what docs/ecosystem.md advises for libraries that refuse our name."""
    if os.environ.get("ECOSYSTEM_GROUP_FIRST"):
        dist.init_process_group("ringleader")


def digest(model: nn.Module | dict[str, Any] | Iterable[Tensor]) -> str:
    """A hash of all values, to the last bit."""
    values = model.state_dict() if isinstance(model, nn.Module) else model
    tensors = values.values() if isinstance(values, dict) else values
    hashed = hashlib.sha256()
    for tensor in tensors:
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        array = full.detach().cpu().contiguous().view(-1).view(torch.uint8)
        hashed.update(array.numpy().tobytes())
    return hashed.hexdigest()
