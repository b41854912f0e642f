"""For C++ callers of methods that torch's trampoline does not know.

Such a call ends in a dispatcher operator. A kernel at the key that is asked first acts
if the group is ours, and passes the call on if it is not.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    ProcessGroup,
    PythonCallbackWork,
)

_lock = threading.Lock()
"""Groups may be formed in several threads at once."""
_library: Any = None
"""Kernels live as long as this object does."""
_kind: type[ProcessGroup] = ProcessGroup
"""Ours."""


def install(kind: type[ProcessGroup]) -> None:
    """Register the kernels for groups of ``kind``; once, with the first of them."""
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
    work = group.all_gather_single(output, source, options)
    return output, PythonCallbackWork(work.wait).boxed()
