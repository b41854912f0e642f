"""Communication hooks of DistributedDataParallel, by name, for any backend.

Torch's own are bound to NCCL, or to works whose futures are not Python's.
"""

# No "from __future__ import annotations": DistributedDataParallel compares the
# annotations of a hook with types, and strings are not equal to them.
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined] # is public
from torch.futures import Future

from ringleader.errors import ConfigError

Hook = Callable[[dist.ProcessGroup | None, GradBucket], Future[Tensor]]


def hook(name: str) -> Hook:
    """The communication hook called ``name``: "bf16" or "fp16".

    ``model.register_comm_hook(None, hook("bf16"))`` averages the gradients of ``model``
    over the default group, in half the bytes of float32. Instead of None, pass the
    ProcessGroup that the model was given. Choose "bf16" unless gradients are known to
    lie well inside the range of float16, 6e-8 to 65504: what is smaller becomes 0, what
    is larger infinite.
    """
    if name not in _HOOKS:
        names = ", ".join(sorted(_HOOKS))
        raise ConfigError(f"compression: there is no hook {name!r}; there are {names}")
    return _HOOKS[name]


def average_bf16(state: dist.ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """Average ``bucket`` over the group ``state``, as bfloat16 on the way."""
    return _average(state, bucket, torch.bfloat16)


def average_fp16(state: dist.ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """Average ``bucket`` over the group ``state``, as float16 on the way."""
    return _average(state, bucket, torch.float16)


def _average(
    group: dist.ProcessGroup | None, bucket: GradBucket, dtype: torch.dtype
) -> Future[Tensor]:
    buffer = bucket.buffer()
    # Divided while still wide: the sum of float16 gradients could overflow.
    narrow = buffer.div_(dist.get_world_size(group)).to(dtype)
    work = dist.all_reduce(narrow, group=group, async_op=True)

    def widen(done: Future[list[Tensor]]) -> Tensor:
        done.wait()  # raises what went wrong
        buffer.copy_(narrow)
        return buffer

    reduced: Future[list[Tensor]] = work.get_future()
    return reduced.then(widen)


_HOOKS: dict[str, Hook] = {"bf16": average_bf16, "fp16": average_fp16}
