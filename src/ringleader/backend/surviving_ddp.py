"""DistributedDataParallel in a script that survives the loss of ranks.

A communication hook reduces the buckets of a backward out of place, and completes all
of them together: after the step has been delivered, and so with one set of members. If
a rank is lost, the gradient is the mean over those that are alive.
"""

# No "from __future__ import annotations": DistributedDataParallel compares the
# annotations of a hook with types, and strings are not equal to them.
import logging
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined] # is public
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ringleader.backend import host_memory, trainer_saves
from ringleader.backend.living_collectives import AllReduce, Living
from ringleader.backend.profiling import operation
from ringleader.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_log = logging.getLogger(__name__)
_MARK = "_ringleader_survives"


class SurvivingHook:
    """Averages the gradients of one model over the ranks that are alive."""

    def __init__(self, survivors: Living, *, overlaps: bool) -> None:
        self.__name__ = self.__qualname__ = "ringleader --survive"
        self._survivors = survivors
        self._overlaps = overlaps
        """Whether buckets leave during backward; then nothing else may."""
        self._buckets: list[tuple[Tensor, Tensor, Future[Tensor]]] = []
        """Bucket, its values in host memory, and its future."""
        self._early: Any = None

    def __call__(self, state: object, bucket: GradBucket) -> Future[Tensor]:
        """Start a bucket; the call for the last one returns when all are delivered."""
        flat = bucket.buffer()
        if flat.layout is not torch.strided:
            raise ConfigError("--survive: sparse gradients are not supported")
        if bucket.index() == 0:
            self._buckets = []
            self._early = self._survivors.open() if self._overlaps else None
        host_memory.check(flat, "all_reduce")
        source = flat.cpu()  # itself, if it is there already
        devices = None if flat.is_cpu else [flat.device]
        future: Future[Tensor] = Future(devices=devices)  # type: ignore[arg-type]
        self._buckets.append((flat, source, future))
        self._survivors.start_part(self._early, AllReduce([source], "mean"))
        if bucket.is_last():
            self._complete()
        return future

    def _complete(self) -> None:
        sources = [source for _, source, _ in self._buckets]
        with operation("all_reduce", sources):
            results = self._survivors.run(AllReduce(sources, "mean"), self._early)
        for (flat, _, future), result in zip(self._buckets, results, strict=True):
            flat.copy_(result)
            future.set_result(flat)
        self._buckets, self._early = [], None


def install(group: "ProcessGroup") -> None:
    """Give models that are wrapped for ``group`` the hook. Once per process."""
    init: Any = DistributedDataParallel.__init__
    if hasattr(init, _MARK):
        return

    @wraps(init)
    def __init__(model: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807
        init(model, *args, **keywords)
        survivors = getattr(model.process_group, "survivors", None)
        if survivors is None:
            _log.warning("ringleader --survive: %s", _OTHER_GROUP)
        else:
            _register_late(model, survivors)
            trainer_saves.install(survivors, model.process_group.rank())

    setattr(__init__, _MARK, True)
    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign, assignment]


_OTHER_GROUP = (
    "a DistributedDataParallel model has a process group of its own, which does not "
    "survive the loss of a rank; leave out process_group="
)
_OTHER_HOOK = (
    "this script registers a communication hook of its own, which is kept: its "
    "collectives survive one by one, and after the loss of a rank some buckets of a "
    "step may contain its gradient while others do not"
)


def _register_late(model: DistributedDataParallel, survivors: Living) -> None:
    """Register the hook at the first forward, unless the script has registered one."""

    def register(_: object, __: object) -> None:
        handle.remove()
        if model._comm_hooks:
            _log.warning("ringleader --survive: %s", _OTHER_HOOK)
            return
        is_quiet = not any(isinstance(m, nn.SyncBatchNorm) for m in model.modules())
        model.register_comm_hook(None, SurvivingHook(survivors, overlaps=is_quiet))

    handle = model.register_forward_pre_hook(register)
