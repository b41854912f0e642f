"""What the reducer of DistributedDataParallel takes for our process group.

The reducer alone has it. So every tensor that it is given to reduce is memory of the
reducer. On the CPU it may be moved to where all ranks of the host can add to it, and on
a GPU nobody needs the sum before the end of the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup
from torch.autograd import profiler

from ringleader.backend import dynamo
from ringleader.backend.device_buckets import BucketWork, DeviceBuckets
from ringleader.backend.device_exchange import Question, is_short
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.profiling import recorder
from ringleader.backend.shared_buckets import SharedBuckets
from ringleader.backend.torch_options import (
    Reduction,
    options_of,
    reduction,
    single_tensor,
)
from ringleader.backend.work import BackendWork
from ringleader.groups.group import handle_of


class ReducerGroup(ProcessGroup):
    """A process group for one reducer; all it does, ``group`` does."""

    def __init__(self, group: RingleaderGroup) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._group = group
        self._shared = SharedBuckets(group.group)
        self._on_device = DeviceBuckets(group)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return self._group.getBackendName()

    def reduce_one_by_one(self) -> None:
        """Reduce every bucket at once and where it is, from now on."""
        self._shared.is_on = self._on_device.is_on = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let the reducer wait for buckets on a GPU before the pass has ended."""
        was_on, self._on_device.is_on = self._on_device.is_on, False
        try:
            yield
        finally:
            self._on_device.is_on = was_on

    def allreduce(
        self, tensors: Any, opts: Any = None
    ) -> BackendWork | BucketWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.allreduce)):
            result: BackendWork | BucketWork | None = run(tensors, opts)
            return result
        tensor = single_tensor(tensors, "all_reduce")
        opts = options_of(AllreduceOptions, opts)
        op = reduction(opts.reduceOp)
        if op.factor is None:
            if tensor.is_cuda and (
                work := self._on_device.all_reduce(opts, tensor, op)
            ):
                return work
            if self._may_share(tensor):
                return self._share(opts, tensor, op)
        return self._group.allreduce(tensors, opts)

    def _share(self, opts: Any, tensor: Tensor, op: Reduction) -> BackendWork:
        """Reduce a bucket on the CPU where all ranks have mapped it."""
        group, question = self._group, None
        if group.exchange is not None:
            question = group.exchange.question(opts, [tensor], [tensor])

        result = [tensor]

        def body() -> None:
            if self._are_on_host(question):
                result[0] = self._shared.all_reduce(tensor, op.name)
            else:
                group.group.all_reduce(tensor, op.name)

        return group.run_together(opts, body, result)

    def _are_on_host(self, question: Question | None) -> bool:
        """Return whether all ranks have such a bucket on the CPU.

        Ranks that have shared one before know it without asking: nobody's model is
        partly on a GPU.
        """
        num_shared = self._shared.num_shared
        return question is None or num_shared > 0 or question.are_on_host()

    def _may_share(self, tensor: Tensor) -> bool:
        """Return whether ranks talk about such a bucket.

        For buckets on the CPU the answer is the same on all ranks.
        """
        group = self._group
        return (
            tensor.is_cpu
            and tensor.layout is torch.strided
            and (tensor.is_floating_point() or tensor.is_complex())  # no map of use
            and not is_short(tensor.nbytes)
            and group.layer is None
            and (group.exchange is not None or not group.is_staged)
            and handle_of(group.group).relay(tensor.nbytes) is not None
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> BackendWork | None:
        return self._group.broadcast(tensors, opts)


dynamo.skip_compilation(ReducerGroup)
