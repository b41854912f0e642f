"""Kernels for C++ callers of methods that torch's trampoline does not forward.

Such a call ends in a dispatcher operator. Our kernel, at the dispatch key that is tried
first, calls the method if the group is ours, and redispatches otherwise.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    ProcessGroup,
    PythonCallbackWork,
)
from torch.autograd import profiler

from ringleader.backend.profiling import record

_lock = threading.Lock()
"""Groups may be created in several threads at once."""
_library: Any = None
"""The registered kernels; they are removed when this object is deleted."""
_kind: type[ProcessGroup] = ProcessGroup
"""The class of our groups."""


def install(kind: type[ProcessGroup]) -> None:
    """Register the kernels for groups of ``kind``. Idempotent."""
    global _library, _kind
    with _lock:
        if _library is not None:
            return
        library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        library.impl("_allgather_base_", _all_gather, "BackendSelect", with_keyset=True)
        _library, _kind = library, kind


def _all_gather(
    keys: Any,
    output: torch.Tensor,
    source: torch.Tensor,
    process_group: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[torch.Tensor, Any]:
    group: Any = ProcessGroup.unbox(process_group)
    if not isinstance(group, _kind):
        operator = torch.ops.c10d._allgather_base_.default
        rest = keys.remove(torch._C.DispatchKey.BackendSelect)
        result: tuple[torch.Tensor, Any] = operator.redispatch(
            rest, output, source, process_group, async_op, timeout
        )
        return result
    options = AllgatherOptions()
    options.asyncOp = async_op
    options.timeout = timedelta(milliseconds=timeout)
    call = group.all_gather_single
    if profiler._is_profiler_enabled:
        call = partial(record, call, has_operator=True)
    work = call(output, source, options)
    return output, PythonCallbackWork(work.wait).boxed()
