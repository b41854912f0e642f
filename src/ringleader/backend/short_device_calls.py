"""Short all_reduces of device tensors that are like earlier ones, with little Python.

The device and the additions need half of what an all_reduce of 1 MiB takes in general.
Here it is prepared like the calls of CPU tensors, and the thread that waits for it runs
it in its own stream, so no event is needed. The other ranks see the same relay.
docs/decisions/0022 has the measurements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions

from ringleader.backend.device_exchange import is_short
from ringleader.backend.staging import HostStaging
from ringleader.backend.torch_options import PLAIN_TENSORS, reduction, timeout_of
from ringleader.engine.arrays_by_address import Addresses
from ringleader.groups import calls
from ringleader.groups.handle import GroupHandle
from ringleader.groups.prepared_calls import Key


class ShortDeviceCalls:
    """Runs synchronous all_reduces of one process group again."""

    def __init__(
        self, handle: GroupHandle, stages: dict[torch.device, HostStaging]
    ) -> None:
        self._handle = handle
        self._stages = stages
        self.is_allowed = False
        """Whether ranks may have accelerators, and calls run one by one."""

    def all_reduce(self, tensors: Any, opts: AllreduceOptions) -> bool:
        """Run a call; return False if it needs the general path."""
        if not self.is_allowed or type(tensors) is not list or len(tensors) != 1:
            return False
        tensor, op = tensors[0], reduction(opts.reduceOp)
        key = _key(opts, tensor, op.name) if op.factor is None else None
        prepared = self._handle.prepared.kept.get(key) if key is not None else None
        if prepared is None:
            return False
        stage, copier = self._stages[tensor.device], prepared.shape.device_copier
        assert copier is not None

        def run(no_addresses: Addresses) -> None:
            with stage.in_callers_stream(), copier.using(tensor.detach().view(-1)):
                prepared.run(no_addresses)

        return self._handle.runner.run_prepared(run, ())

    def keep(self, opts: Any, tensor: Tensor, op: str) -> None:
        """Prepare calls like this one, which a relay has done."""
        key = _key(opts, tensor, op) if is_short(tensor.nbytes) else None
        if key is None or key in self._handle.prepared.kept:
            return
        copier = self._stages[tensor.device].copier(tensor.dtype)
        if copier is not None:
            call = calls.all_reduce_device(copier, tensor.dtype, tensor.numel(), op, [])
            self._handle.prepared.keep((key, ()), call)


def _key(opts: Any, tensor: Any, op: str) -> Key | None:
    """What a call shares with others like it; None if it needs the general path."""
    if (
        opts.asyncOp
        or timeout_of(opts) is not None
        or type(tensor) not in PLAIN_TENSORS
        or tensor.is_cpu
        or tensor.layout is not torch.strided
        or not tensor.is_contiguous()
        or tensor.is_neg()
        or tensor.is_conj()
    ):
        return None
    return ("all_reduce", (op, tensor.device), tensor.dtype, tensor.numel())
