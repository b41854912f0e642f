"""all_reduce of sparse COO tensors: all_gather of the entries, then a local sum."""

from __future__ import annotations

import torch
from torch import Tensor

from ringleader.backend import host_memory
from ringleader.backend.torch_options import Reduction
from ringleader.errors import ConfigError
from ringleader.groups.group import Group


def all_reduce(group: Group, tensor: Tensor, op: Reduction) -> None:
    """Sum a sparse ``tensor`` over all ranks, in place; ranks may differ in entries."""
    if op.name != "sum" or op.factor is not None:
        raise ConfigError(
            f"all_reduce of sparse tensors supports sum only, not {op.name}"
        )
    host_memory.check(tensor, "all_reduce")
    mine = tensor.detach().coalesce().cpu()
    lengths = torch.empty(group.size, dtype=torch.int64, device="cpu")
    group.all_gather(lengths, torch.tensor([mine._nnz()], device="cpu"))
    counts = [int(n) for n in lengths]
    indices = _gather(group, mine.indices().t().contiguous(), counts)
    values = _gather(group, mine.values(), counts)
    total = torch.sparse_coo_tensor(
        indices.t(), values, mine.shape, device="cpu", check_invariants=False
    )
    with torch.no_grad():
        tensor.copy_(total.coalesce().to(tensor.device))


def _gather(group: Group, rows: Tensor, counts: list[int]) -> Tensor:
    """Gather and concatenate the rows of all ranks."""
    outs = [rows.new_empty((n, *rows.shape[1:])) for n in counts]
    group.all_gather(outs, rows.contiguous())
    return torch.cat(outs)
