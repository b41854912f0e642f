"""Calls of torch that are like earlier ones, with hardly any Python.

A collective of a kilobyte takes what its Python takes. These functions read only what
says that a call may run prepared, and do nothing for all other calls, for which the
methods of the process group go on as for a first one. They cost a third of that.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceScatterOptions,
)

from ringleader.backend.error_context import ErrorContext
from ringleader.backend.short_device_calls import ShortDeviceCalls
from ringleader.backend.staging import HostStaging
from ringleader.backend.torch_options import PLAIN_TENSORS, reduction
from ringleader.errors import RingleaderError
from ringleader.groups.group import Group, handle_of
from ringleader.groups.prepared_calls import (
    NO_TENSORS,
    Kind,
    kind_of_one,
    kind_of_two,
)
from ringleader.groups.work import DoneWork, Work

_NO_LIMIT = timedelta(0)
_EQUAL_PARTS = (None, None)
"""The splits of an all_to_all without splits, as in its kind."""
_SUM = ReduceOp.SUM


RAN = DoneWork()
"""What a synchronous call that has run here returns."""


class RepeatedCalls:
    """Runs calls of one process group again.

    Each method returns None if the call needs the general path, RAN if it has run, and
    its work if it is asynchronous.
    """

    def __init__(
        self,
        group: Group,
        error_context: ErrorContext,
        stages: dict[torch.device, HostStaging],
    ) -> None:
        handle = handle_of(group)
        self._prepared = handle.prepared
        self._run_now = handle.runner.run_prepared
        self._error_context = error_context
        self.is_allowed = False
        """Whether tensors on the CPU go to the group as they are, one by one."""
        self.on_devices = ShortDeviceCalls(handle, stages)
        self.count = 0
        """The calls that have run here."""

    def all_reduce(self, tensors: Any, opts: Any) -> Work | None:
        """See RingleaderGroup."""
        if type(opts) is not AllreduceOptions:
            return None
        if not self.is_allowed:
            return None if opts.asyncOp else self._all_reduce_on_device(tensors, opts)
        if type(tensors) is not list or len(tensors) != 1:
            return None
        tensor, name = tensors[0], _reduction(opts.reduceOp)
        if type(tensor) not in PLAIN_TENSORS or name is None:
            return None
        return self._run(opts, kind_of_one("all_reduce", name, tensor), tensor)

    def _all_reduce_on_device(
        self, tensors: Any, opts: AllreduceOptions
    ) -> Work | None:
        try:
            has_run = self.on_devices.all_reduce(tensors, opts)
        except RingleaderError:
            with self._error_context:
                raise
        self.count += has_run
        return RAN if has_run else None

    def broadcast(self, tensors: Any, opts: Any) -> Work | None:
        """See RingleaderGroup."""
        if type(opts) is not BroadcastOptions or not self.is_allowed:
            return None
        if type(tensors) is not list or len(tensors) != 1:
            return None
        tensor = tensors[0]
        if type(tensor) not in PLAIN_TENSORS:
            return None
        return self._run(opts, kind_of_one("broadcast", opts.rootRank, tensor), tensor)

    def all_gather(self, output: Tensor, source: Tensor, opts: Any) -> Work | None:
        """See RingleaderGroup."""
        if type(opts) is not AllgatherOptions or not self.is_allowed:
            return None
        if type(source) not in PLAIN_TENSORS or type(output) not in PLAIN_TENSORS:
            return None
        kind = kind_of_two("all_gather", None, source, output)
        return self._run(opts, kind, source, output)

    def reduce_scatter(self, output: Tensor, source: Tensor, opts: Any) -> Work | None:
        """See RingleaderGroup."""
        if type(opts) is not ReduceScatterOptions or not self.is_allowed:
            return None
        name = _reduction(opts.reduceOp)
        if (
            type(source) not in PLAIN_TENSORS
            or type(output) not in PLAIN_TENSORS
            or name is None
        ):
            return None
        kind = kind_of_two("reduce_scatter", name, source, output)
        return self._run(opts, kind, source, output)

    def all_to_all(
        self, output: Tensor, source: Tensor, splits: object, opts: Any
    ) -> Work | None:
        """See RingleaderGroup. Rows of one element: their number is in the kind."""
        if splits or type(opts) is not AllToAllOptions or not self.is_allowed:
            return None
        if type(source) not in PLAIN_TENSORS or type(output) not in PLAIN_TENSORS:
            return None
        if not source.dim() == 1 == output.dim():
            return None
        kind = kind_of_two("all_to_all", _EQUAL_PARTS, source, output)
        return self._run(opts, kind, source, output)

    def barrier(self, opts: Any) -> Work | None:
        """See RingleaderGroup."""
        if type(opts) is not BarrierOptions or not self.is_allowed:
            return None
        return self._run(opts, NO_TENSORS)

    def _run(self, opts: Any, kind: Kind | None, *given: Tensor) -> Work | None:
        if kind is None:
            return None
        prepared = self._prepared.kept.get(kind[0])
        if prepared is None:
            return None
        work: Work | None = RAN
        try:
            if opts.asyncOp:
                if opts.timeout > _NO_LIMIT:
                    return None
                work = self._prepared.run(kind, True, *given)
            elif not self._run_now(prepared.run, kind[1], opts):
                return None
        except RingleaderError:
            with self._error_context:  # entering it for every call takes time
                raise
        if work is not None:
            self.count += 1
        return work


def _reduction(op: Any) -> str | None:
    """The name of a reduction; None if it has a factor."""
    if op == _SUM:
        return "sum"
    kind = reduction(op)
    return kind.name if kind.factor is None else None
