"""What the reducer of DistributedDataParallel takes for our process group.

The reducer alone has it. So every tensor that it is given to reduce is memory of the
reducer, which may be moved to where all ranks of the host can add to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup

from ringleader.backend import dynamo
from ringleader.backend.device_exchange import Question, is_short
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.shared_buckets import SharedBuckets
from ringleader.backend.torch_options import options_of, reduction, single_tensor
from ringleader.backend.work import BackendWork
from ringleader.groups.group import handle_of


class ReducerGroup(ProcessGroup):
    """A process group for one reducer; all it does, ``group`` does."""

    def __init__(self, group: RingleaderGroup) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._group = group
        self.buckets = SharedBuckets(group.group)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return self._group.getBackendName()

    def allreduce(self, tensors: Any, opts: Any = None) -> BackendWork | None:
        group = self._group
        tensor = single_tensor(tensors, "all_reduce")
        opts = options_of(AllreduceOptions, opts)
        op = reduction(opts.reduceOp)
        if op.factor is not None or not self._may_share(tensor):
            return group.allreduce(tensors, opts)
        question = None
        if group.exchange is not None:
            question = group.exchange.question(opts, [tensor], [tensor])

        result = [tensor]

        def body() -> None:
            if self._are_on_host(question):
                result[0] = self.buckets.all_reduce(tensor, op.name)
            else:
                group.group.all_reduce(tensor, op.name)

        return group.run_together(opts, body, result)

    def _are_on_host(self, question: Question | None) -> bool:
        """Return whether all ranks have such a bucket on the CPU.

        Ranks that have shared one before know it without asking: nobody's model is
        partly on a GPU.
        """
        buckets = self.buckets
        return question is None or buckets.num_shared > 0 or question.are_on_host()

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
