"""The sum of sparse contributions: all members exchange encodings and decode them all.

Sums of sparse vectors are less sparse with every member, so they are not reduced on the
way. All members add the same encodings in the same order, and get the same bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ringleader.codec.sparse_chunks import SparseChunks
from ringleader.errors import ProtocolError
from ringleader.groups.group import Group

DECAY = 0.95
"""Share of the residual that is kept: most of it is never sent, and grows old."""


def sparse_sum(
    group: Group, source: Tensor, out: Tensor, residual: Tensor, error_out: Tensor
) -> None:
    """Write the sum of all members' ``source`` to ``out``, both in main memory.

    ``error_out`` receives what was not sent, to be the next ``residual``.
    """
    codec = SparseChunks()
    wanted = source.numpy() + np.float32(DECAY) * residual.numpy()
    data = np.empty(codec.num_bytes(len(wanted)), np.uint8)
    codec.encode(wanted, data, error_out.numpy())
    gathered = torch.empty(group.size * len(data), dtype=torch.uint8)
    group.all_gather(gathered, torch.from_numpy(data))
    total, part = out.numpy(), np.empty(len(wanted), np.float32)
    total.fill(0)
    for rank, row in enumerate(gathered.view(group.size, len(data)).numpy()):
        try:
            codec.decode(row, part)
        except ValueError as exc:
            raise ProtocolError(rank, f"sparse contribution: {exc}") from exc
        total += part
