"""Communication hooks of DistributedDataParallel, by name, for any backend.

On our backend a bucket is compressed and exchanged in the group's own thread, beside
backward(). On others it is done at once, inside the hook: their collectives must be
called in the order of the program, which a thread could not keep. Only fp16 and bf16,
one all_reduce each, run asynchronously there, too.
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
from ringleader.backend.work import BackendWork
from ringleader.compression.compressor import Compressor
from ringleader.compression.memory import Slot
from ringleader.compression.peers import HALVES, LaterPeers, default_group, our_group
from ringleader.errors import ConfigError
from ringleader.groups.group import Group

Body = Callable[[], None]


def hook(
    name: str,
    *,
    feedback: bool = True,
    momentum: float | None = None,
    seed: int = 0,
) -> "Hook":
    """The communication hook called ``name``: "int8", "bf16", "topk:0.01" and so on.

    ``model.register_comm_hook(None, hook("int8"))`` averages the gradients of ``model``
    over the default group, in a quarter of the bytes. Instead of None, pass the
    ProcessGroup that the model was given. One hook is for one model: it remembers what
    is lost of each gradient and adds it to the next (``feedback``).

    See ``compressor`` for the other arguments. What belongs into checkpoints has
    ``Hook.compressor``.
    """
    return Hook(Compressor(name, feedback=feedback, momentum=momentum, seed=seed))


class Hook:
    """Averages one bucket after the other; all buckets of a backward are one step."""

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor
        """Its ``state_dict()`` and ``reset()`` are for between two backwards."""
        self.__name__ = self.__qualname__ = f"ringleader {compressor.scheme.name}"
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._numbers = itertools.count()
        self._completion_pool = CompletionPool()
        self._devices: dict[torch.device, Device] = {}
        self._step = _Step(compressor)

    def __call__(
        self, state: dist.ProcessGroup | None, bucket: GradBucket
    ) -> Future[Tensor]:
        """Average ``bucket`` over the group ``state``."""
        group = default_group() if state is None else state
        flat, slots = bucket.buffer(), self._slots(bucket)
        if flat.layout is not torch.strided:
            raise ConfigError("compression: sparse gradients cannot be compressed")
        if bucket.index() == 0:
            self._step.is_over = True  # whatever is left of the last one
            self._step = _Step(self.compressor)
            self.compressor.begin()
        self._step.add(is_last=bucket.is_last())
        ours = our_group(group)
        is_float = flat.dtype is torch.float32  # sums of halves could overflow
        if is_float and self.compressor.is_needless(group, len(flat)):
            with self._step.part():
                return _as_it_is(group, flat, is_last=bucket.is_last())
        if ours is not None:
            return self._in_background(group, ours, flat, slots)
        if self.compressor.scheme.codec in HALVES:
            return self._later(group, flat, slots)
        with self._step.part():
            self.compressor.reduce(group, flat, slots)
        return _finished(flat)

    def _slots(self, bucket: GradBucket) -> list[Slot]:
        """Where each parameter lies in the bucket. DDP makes new buckets after the
        first step, so parameters are known by the order in which they were first seen.
        """
        slots, start = [], 0
        for parameter in bucket.parameters():
            if parameter not in self._names:
                self._names[parameter] = str(next(self._numbers))
            sizes = zip(parameter.stride(), parameter.shape, strict=True)
            shape = tuple(size for _, size in sorted(sizes, key=lambda s: -s[0]))
            slots.append(Slot(self._names[parameter], start, shape))
            start += parameter.numel()
        return slots

    def _in_background(
        self,
        group: dist.ProcessGroup,
        ours: Group,
        flat: Tensor,
        slots: list[Slot],
    ) -> Future[Tensor]:
        step = self._step

        def average() -> None:
            with step.part():
                self.compressor.reduce(group, flat, slots)

        body, arrive = average, None
        if not flat.is_cpu:
            body, arrive = self._on_device(flat, average)
        work = BackendWork(
            [ours.together(body, async_op=True)],
            [flat],
            self._completion_pool,
            add_context=ErrorContext(
                ours, GroupIdentity(dist.get_process_group_ranks(group))
            ),
            arrive=arrive,
        )
        return work.get_future().then(_only)

    def _on_device(self, flat: Tensor, average: Body) -> tuple[Body, Body]:
        """(``average`` after what the caller's stream has to do, what orders the
        caller's stream after it).
        """
        device = self._devices.get(flat.device) or device_of(flat.device)
        self._devices[flat.device] = device
        done: list[Event] = []
        with device.here():
            ready = device.mark()

        def body() -> None:
            with device.here(), device.inbound():
                device.after(ready)
                device.use(flat)
                average()
                done.append(device.mark())

        def arrive() -> None:
            with device.here():
                device.after(done[0])

        return body, arrive

    def _later(
        self, group: dist.ProcessGroup, flat: Tensor, slots: list[Slot]
    ) -> Future[Tensor]:
        """16 bits through one all_reduce of another backend, beside backward()."""
        peers, step = LaterPeers(group, flat.device), self._step
        if peers.size == 1:
            with step.part():
                return _finished(flat)
        with step.part(ends=False):
            self.compressor.reduce(group, flat, slots, peers=peers)

        def widen(done: Future[list[Tensor]]) -> Tensor:
            with step.part():
                done.wait()  # raises what went wrong
                flat.copy_(peers.narrow)
            return flat

        return peers.started().then(widen)


class _Step:
    """The buckets of one backward. Remembered when all have been averaged, in whatever
    order they end; forgotten when one fails.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.is_over = False
        self._compressor = compressor
        self._lock = threading.Lock()
        self._under_way = 0
        self._has_last = False

    def add(self, *, is_last: bool) -> None:
        """One more bucket is to be averaged."""
        with self._lock:
            self._under_way += 1
            self._has_last = is_last

    @contextmanager
    def part(self, *, ends: bool = True) -> Iterator[None]:
        """One bucket, or with ``ends`` False the first part of one."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._finish(self._compressor.abort)
            raise
        with self._lock:
            self._under_way -= ends
            if self._has_last and not self._under_way:
                self._finish(self._compressor.commit)

    def _finish(self, how: Body) -> None:
        if not self.is_over:
            self.is_over = True
            how()


def _as_it_is(
    group: dist.ProcessGroup, flat: Tensor, *, is_last: bool
) -> Future[Tensor]:
    """What DistributedDataParallel does without a hook. For the last bucket everybody
    waits, and who waits does it fastest.
    """
    ours = our_group(group)
    if is_last and flat.is_cpu and ours is not None:
        ours.all_reduce(flat, "mean")
        return _finished(flat)
    mean = dist.ReduceOp.AVG
    work = dist.all_reduce(flat, mean, group=group, async_op=True)
    assert work is not None
    future: Future[list[Tensor]] = work.get_future()
    return future.then(_only)


def _only(done: Future[list[Tensor]]) -> Tensor:
    """The one tensor; raises what went wrong."""
    return done.value()[0]


def _finished(flat: Tensor) -> Future[Tensor]:
    devices = None if flat.is_cpu else [flat.device]
    future: Future[Tensor] = Future(devices=devices)  # type: ignore[arg-type]
    future.set_result(flat)
    return future
