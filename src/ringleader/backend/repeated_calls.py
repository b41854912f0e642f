"""Synchronous calls of torch that are like earlier ones, with hardly any Python.

A collective of a kilobyte takes what its Python takes. These functions read only what
says that a call may run prepared, and do nothing for all other calls: they return
False, and the methods of the process group go on as for a first call. Each of them
costs 1 us where the general way to the prepared call costs 3.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

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
from torch.nn import Parameter

from ringleader.backend.error_context import ErrorContext
from ringleader.backend.torch_options import reduction
from ringleader.errors import RingleaderError
from ringleader.groups.group import Group, handle_of
from ringleader.groups.prepared_calls import (
    NO_TENSORS,
    Kind,
    kind_of_one,
    kind_of_two,
)

_NO_LIMIT = timedelta(0)
_PLAIN = frozenset((Tensor, Parameter))
"""Types of tensors that are not wrapped by functional collectives."""
_EQUAL_PARTS = (None, None)
"""The splits of an all_to_all without splits, as in its kind."""
_SUM = ReduceOp.SUM


class RepeatedCalls:
    """Runs calls of one process group again. Each returns whether it has run."""

    def __init__(self, group: Group, error_context: ErrorContext) -> None:
        self._repeat = handle_of(group).prepared.repeat
        self._error_context = error_context
        self.is_allowed = False
        """Whether tensors on the CPU go to the group as they are, one by one."""
        self.count = 0
        """The calls that have run here."""

    def all_reduce(self, tensors: Any, opts: Any) -> bool:
        """See RingleaderGroup."""
        if type(opts) is not AllreduceOptions or not self._allows(opts):
            return False
        tensor, name = tensors[0], _reduction(opts.reduceOp)
        return (
            type(tensor) in _PLAIN
            and len(tensors) == 1
            and name is not None
            and self._run(kind_of_one("all_reduce", name, tensor))
        )

    def broadcast(self, tensors: Any, opts: Any) -> bool:
        """See RingleaderGroup."""
        if type(opts) is not BroadcastOptions or not self._allows(opts):
            return False
        tensor = tensors[0]
        return (
            type(tensor) in _PLAIN
            and len(tensors) == 1
            and self._run(kind_of_one("broadcast", opts.rootRank, tensor))
        )

    def all_gather(self, output: Tensor, source: Tensor, opts: Any) -> bool:
        """See RingleaderGroup."""
        return (
            type(opts) is AllgatherOptions
            and self._allows(opts)
            and type(source) in _PLAIN
            and type(output) in _PLAIN
            and self._run(kind_of_two("all_gather", None, source, output))
        )

    def reduce_scatter(self, output: Tensor, source: Tensor, opts: Any) -> bool:
        """See RingleaderGroup."""
        if type(opts) is not ReduceScatterOptions or not self._allows(opts):
            return False
        name = _reduction(opts.reduceOp)
        return (
            type(source) in _PLAIN
            and type(output) in _PLAIN
            and name is not None
            and self._run(kind_of_two("reduce_scatter", name, source, output))
        )

    def all_to_all(
        self, output: Tensor, source: Tensor, splits: object, opts: Any
    ) -> bool:
        """See RingleaderGroup. Rows of one element: their number is in the kind."""
        return (
            not splits
            and type(opts) is AllToAllOptions
            and self._allows(opts)
            and type(source) in _PLAIN
            and type(output) in _PLAIN
            and source.dim() == 1 == output.dim()
            and self._run(kind_of_two("all_to_all", _EQUAL_PARTS, source, output))
        )

    def barrier(self, opts: Any) -> bool:
        """See RingleaderGroup."""
        return (
            type(opts) is BarrierOptions
            and self._allows(opts)
            and self._run(NO_TENSORS)
        )

    def _allows(self, opts: Any) -> bool:
        return self.is_allowed and not opts.asyncOp and not opts.timeout > _NO_LIMIT

    def _run(self, kind: Kind | None) -> bool:
        try:
            if not self._repeat(kind):
                return False
        except RingleaderError:
            with self._error_context:  # entering it for every call takes time
                raise
        self.count += 1
        return True


def _reduction(op: Any) -> str | None:
    """The name of a reduction; None if it has a factor."""
    if op == _SUM:
        return "sum"
    kind = reduction(op)
    return kind.name if kind.factor is None else None
