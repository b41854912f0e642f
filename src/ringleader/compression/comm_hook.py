"""Communication hooks for DistributedDataParallel, by name, for any backend.

On the ringleader backend a bucket is compressed and exchanged in the group's own
thread, concurrently with backward(). On other backends it is exchanged inside the hook:
their collectives must be called in program order, which a thread could not guarantee.
Only fp16 and bf16, one all_reduce each, run asynchronously on other backends, too.
"""

# No "from __future__ import annotations": DistributedDataParallel compares the
# annotations of a hook with types, and strings are not equal to them.
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined] # is public
from torch.futures import Future
from torch.utils.weak import WeakIdKeyDictionary

from ringleader.backend.completion_pool import CompletionPool
from ringleader.backend.device import Device, Event, device_of
from ringleader.backend.error_context import ErrorContext, GroupIdentity
from ringleader.backend.underlying_group import ringleader_group
from ringleader.backend.work import BackendWork
from ringleader.compression.communicator import (
    HALF_DTYPES,
    AsyncTorchCommunicator,
    default_group,
)
from ringleader.compression.compressor import Compressor
from ringleader.compression.compressor_state import ParameterSlice
from ringleader.errors import ConfigError
from ringleader.groups.group import Group, handle_of

Body = Callable[[], None]


def hook(
    name: str,
    *,
    feedback: bool = True,
    momentum: float | None = None,
    seed: int = 0,
) -> "Hook":
    """Create a DDP communication hook for the scheme ``name``, such as "int8".

    ``model.register_comm_hook(None, hook("int8"))`` averages the gradients of ``model``
    over the default group in a quarter of the bytes. Instead of None, pass the
    ProcessGroup that the model was given. Use one hook per model: it keeps the
    compression error of each gradient and adds it to the next (``feedback``).

    See ``compressor`` for the other arguments. ``Hook.compressor`` has the state for
    checkpoints.
    """
    return Hook(Compressor(name, feedback=feedback, momentum=momentum, seed=seed))


class Hook:
    """Averages buckets one after the other; all buckets of a backward are one step."""

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor
        """Call its ``state_dict()`` and ``reset()`` only between two backwards."""
        self.__name__ = self.__qualname__ = f"ringleader {compressor.scheme.name}"
        self._parameter_names: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._parameter_numbers = itertools.count()
        self._completion_pool = CompletionPool()
        self._devices: dict[torch.device, Device] = {}
        self._step = _Step(compressor)

    def __call__(
        self, state: dist.ProcessGroup | None, bucket: GradBucket
    ) -> Future[Tensor]:
        """Average ``bucket`` over the group ``state``."""
        group = default_group() if state is None else state
        flat, parameters = bucket.buffer(), self._slices(bucket)
        if flat.layout is not torch.strided:
            raise ConfigError("compression: sparse gradients cannot be compressed")
        if bucket.index() == 0:
            self._step.is_over = True  # also if it was not finished
            self._step = _Step(self.compressor)
            self.compressor.begin()
        self._step.add(is_last=bucket.is_last())
        ours = ringleader_group(group)
        is_float32 = flat.dtype is torch.float32  # a sum of halves could overflow
        if is_float32 and self.compressor.is_uncompressed(group, len(flat)):
            with self._step.bucket():
                return _average_uncompressed(group, flat, is_last=bucket.is_last())
        if ours is not None:
            return self._in_background(group, ours, flat, parameters)
        if self.compressor.scheme.codec in HALF_DTYPES:
            return self._start_half(group, flat, parameters)
        with self._step.bucket():
            self.compressor.reduce(group, flat, parameters)
        return _finished(flat)

    def _slices(self, bucket: GradBucket) -> list[ParameterSlice]:
        """Return the slice of each parameter in the bucket.

        DDP rebuilds its buckets after the first step, so parameters are named by the
        order in which they were first seen.
        """
        slices, start = [], 0
        for parameter in bucket.parameters():
            if parameter not in self._parameter_names:
                self._parameter_names[parameter] = str(next(self._parameter_numbers))
            sizes = zip(parameter.stride(), parameter.shape, strict=True)
            shape = tuple(size for _, size in sorted(sizes, key=lambda s: -s[0]))
            slices.append(
                ParameterSlice(self._parameter_names[parameter], start, shape)
            )
            start += parameter.numel()
        return slices

    def _in_background(
        self,
        group: dist.ProcessGroup,
        ours: Group,
        flat: Tensor,
        parameters: list[ParameterSlice],
    ) -> Future[Tensor]:
        step = self._step

        def average() -> None:
            with step.bucket():
                self.compressor.reduce(group, flat, parameters)

        body, deliver = average, None
        if not flat.is_cpu:
            body, deliver = self._on_device(flat, average)
        work = BackendWork(
            [handle_of(ours).together(body, async_op=True)],
            [flat],
            self._completion_pool,
            add_context=ErrorContext(
                ours, GroupIdentity(dist.get_process_group_ranks(group))
            ),
            deliver=deliver,
            device=self._devices.get(flat.device),
        )
        return work.get_future().then(_only)

    def _on_device(self, flat: Tensor, average: Body) -> tuple[Body, Body]:
        """Return (``average`` ordered after the caller's stream, a function that orders
        the caller's stream after it).
        """
        device = self._devices.get(flat.device) or device_of(flat.device)
        self._devices[flat.device] = device
        done: list[Event] = []
        with device.guard():
            ready = device.record_event()

        def body() -> None:
            with device.guard(), device.h2d_stream():
                device.wait_event(ready)
                device.record_stream(flat)
                average()
                done.append(device.record_event())

        def deliver() -> None:
            with device.guard():
                device.wait_event(done[0])

        return body, deliver

    def _start_half(
        self, group: dist.ProcessGroup, flat: Tensor, parameters: list[ParameterSlice]
    ) -> Future[Tensor]:
        """Start one all_reduce of 16-bit values on another backend."""
        comm, step = AsyncTorchCommunicator(group, flat.device), self._step
        if comm.size == 1:
            with step.bucket():
                return _finished(flat)
        with step.bucket(is_end=False):
            self.compressor.reduce(group, flat, parameters, comm=comm)

        def widen(done: Future[list[Tensor]]) -> Tensor:
            with step.bucket():
                done.wait()  # raises the error of the all_reduce
                flat.copy_(comm.narrow)
            return flat

        return comm.started().then(widen)


class _Step:
    """The buckets of one backward.

    The step is committed when all have been averaged, in any order, and aborted when
    one fails.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.is_over = False
        self._compressor = compressor
        self._lock = threading.Lock()
        self._num_pending = 0
        self._has_last = False

    def add(self, *, is_last: bool) -> None:
        """Count one more bucket to be averaged."""
        with self._lock:
            self._num_pending += 1
            self._has_last = is_last

    @contextmanager
    def bucket(self, *, is_end: bool = True) -> Iterator[None]:
        """Run one bucket or, unless ``is_end``, the first part of one."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._finish(self._compressor.abort)
            raise
        with self._lock:
            self._num_pending -= is_end
            if self._has_last and not self._num_pending:
                self._finish(self._compressor.commit)

    def _finish(self, how: Body) -> None:
        if not self.is_over:
            self.is_over = True
            how()


def _average_uncompressed(
    group: dist.ProcessGroup, flat: Tensor, *, is_last: bool
) -> Future[Tensor]:
    """Average as DistributedDataParallel does without a hook.

    All ranks wait for the last bucket. It is averaged in this thread, which is faster
    than handing it to another one.
    """
    ours = ringleader_group(group)
    if is_last and flat.is_cpu and ours is not None:
        ours.all_reduce(flat, "mean")
        return _finished(flat)
    mean = dist.ReduceOp.AVG
    work = dist.all_reduce(flat, mean, group=group, async_op=True)
    assert work is not None
    future: Future[list[Tensor]] = work.get_future()
    return future.then(_only)


def _only(done: Future[list[Tensor]]) -> Tensor:
    """Return the only tensor; raises the error of the operation."""
    return done.value()[0]


def _finished(flat: Tensor) -> Future[Tensor]:
    devices = None if flat.is_cpu else [flat.device]
    future: Future[Tensor] = Future(devices=devices)  # type: ignore[arg-type]
    future.set_result(flat)
    return future
