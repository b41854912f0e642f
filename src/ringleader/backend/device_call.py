"""A collective call of torch, as ranks on one device agree on it and run it there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceScatterOptions,
)

from ringleader.backend.device import Device
from ringleader.backend.device_collectives import (
    ALIGN,
    AllGather,
    AllReduce,
    Broadcast,
    Collective,
    ReduceScatter,
    is_combined,
)
from ringleader.backend.torch_options import Reduction, reduction

DIGEST_BYTES = 16
_NAMES: dict[type, str] = {
    AllreduceOptions: "all_reduce",
    AllreduceCoalescedOptions: "all_reduce",
    BroadcastOptions: "broadcast",
    AllgatherOptions: "all_gather",
    ReduceScatterOptions: "reduce_scatter",
}
"""The options of a call -> what it is; other calls pass through host memory."""
_NO_REDUCTION = Reduction("none")


class DeviceCall:
    """One call on one rank, on tensors of any device: ``ins`` are read, ``outs``
    written. An all_reduce may have several tensors, each of them in both.
    """

    def __init__(
        self, opts: Any, rank: int, ins: Sequence[Tensor], outs: Sequence[Tensor]
    ) -> None:
        self.name = _NAMES.get(type(opts), "")
        """Empty if no device can do it."""
        self._rank = rank
        self._op = getattr(opts, "reduceOp", _NO_REDUCTION)
        if self._op is not _NO_REDUCTION:
            self._op = reduction(self._op)
        self._root = getattr(opts, "rootRank", 0)
        self._ins = list(ins)
        self._outs = list(outs)
        self._parts = max(self._outs, self._ins, key=len)
        """The tensors whose lengths all ranks know."""
        if not self._parts or self._op.factor is not None:
            self.name = ""
        self._flat: dict[int, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor; equal on all ranks."""
        return sum(part.nbytes for part in self._parts)

    @property
    def wanted_bytes(self) -> int:
        """Room in a slot that is worth having: several tensors then are one piece."""
        if self.name != "all_reduce" or len(self._parts) == 1:
            return 0
        return sum(-(-part.nbytes // ALIGN) * ALIGN for part in self._parts)

    def digest(self) -> bytes:
        """Return what is equal on all ranks that make the same call."""
        kinds = tuple((part.dtype, part.numel()) for part in self._parts)
        return _digest(self.name, self._op.name, self._root, kinds)

    def device(self) -> torch.device:
        """Return the device of all tensors; "cpu" if the host has to do the call.

        It also reports mistakes, such as unlike lengths.
        """
        first = self._parts[0]
        is_plain = self._fits_together() and all(
            each.device == first.device
            and each.layout is torch.strided
            and is_combined(each.dtype, self._op.name)
            for each in (*self._ins, *self._outs)
        )
        return first.device if is_plain else torch.device("cpu")

    def _fits_together(self) -> bool:
        """Return whether the tensors of this rank have the right lengths and dtypes."""
        if self.name == "all_reduce":
            return True  # each of them is combined by itself
        mine = self._parts[self._rank] if len(self._parts) > 1 else self._parts[0]
        others = self._outs if self._parts is self._ins else self._ins
        return all(each.numel() == mine.numel() for each in others) and all(
            each.dtype == mine.dtype for each in (*self._ins, *self._outs)
        )

    def start(self, device: Device, slot_bytes: int) -> Collective:
        """Return the collective on flat tensors, for use in the current stream."""
        for tensor in (*self._ins, *self._outs):
            if id(tensor) not in self._flat:
                device.record_stream(tensor)
                self._flat[id(tensor)] = _flat_values(tensor)
        ins = [self._flat[id(tensor)] for tensor in self._ins]
        outs = [self._flat[id(tensor)] for tensor in self._outs]
        rank, op = self._rank, self._op.name
        if self.name == "all_reduce":
            return AllReduce(outs, op, slot_bytes)
        if self.name == "broadcast":
            return Broadcast(rank, (ins or outs)[0], self._root, slot_bytes)
        if self.name == "all_gather":
            return AllGather(rank, outs, ins[0], slot_bytes)
        return ReduceScatter(rank, outs[0], ins, op, slot_bytes)

    def finish(self) -> None:
        """Copy results into tensors that are not contiguous, in the current stream."""
        for tensor in self._outs:
            result = self._flat[id(tensor)]
            if result.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(result.view(tensor.shape))
        self._flat.clear()


@lru_cache(maxsize=256)
def _digest(
    name: str, op: str, root: int, kinds: tuple[tuple[torch.dtype, int], ...]
) -> bytes:
    text = f"{name} {op} {root} {kinds}"
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def _flat_values(tensor: Tensor) -> Tensor:
    """Return ``tensor`` as a flat one with plain values; a copy if it has to be."""
    values = tensor.detach()
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        values = values.contiguous().resolve_conj().resolve_neg()
    return values if values.dim() == 1 else values.view(-1)
