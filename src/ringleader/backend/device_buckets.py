"""Gradients on a GPU that several ranks share, reduced at the end of a backward pass.

All buckets of DistributedDataParallel are one operation, which the thread of the pass
runs when all gradients are computed. The ranks meet once in a step and not once for
each bucket, and the processes take turns on the GPU as often. Nothing is lost by it: it
is one GPU that computes and adds. docs/decisions/0027 has the measurements.

Ranks need not agree on what they reduce together. A rank asks the others once for each
bucket, or once for several (device_exchange.py). Where the answers differ all reduce
one bucket through host memory and ask again for the next one: a rank that has run out
of data takes part with zeros, one bucket at a time.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions
from torch._C._distributed_c10d import Work as TorchWork
from torch.futures import Future

from ringleader.backend.device import Event
from ringleader.backend.device_collectives import is_combined
from ringleader.backend.device_exchange import Question, is_short
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.torch_options import Reduction, timeout_of
from ringleader.backend.work import NO_TIMEOUT
from ringleader.groups.group import handle_of
from ringleader.settings import shares_buckets


class DeviceBuckets:
    """The buckets of one model, on one rank.

    Only for the reducer: it asks for the futures of its buckets, and reads them after
    the callbacks of the pass that were queued before its own.
    """

    def __init__(self, group: RingleaderGroup) -> None:
        self.group = group
        self.is_on = shares_buckets()
        """False if each bucket of this rank is an operation of its own."""
        self._pass = -1
        """The last backward pass that will call ``_end_pass``."""
        self._batch: Batch | None = None
        self._ending = 0
        """The thread that is in ``_end_pass``."""

    def all_reduce(
        self, opts: AllreduceOptions, tensor: Tensor, op: Reduction
    ) -> BucketWork | None:
        """Reduce a bucket at the end of this pass; None if that is not possible."""
        will_end = self._will_end()  # also if another pass has begun the batch
        if not will_end or not self._may_join(opts, tensor, op):
            return None
        device = self.group.stage(tensor.device).device
        with device.guard():
            bucket = Bucket(tensor, device.record_event())
        handle_of(self.group.group).runner.postponement.begin()
        if self._batch is None or not self._batch.add(bucket, op):
            if not self._may_begin(tensor):
                return None
            self._batch = Batch(self, bucket, opts, op)
        self.group.count_call()
        return BucketWork(self._batch, bucket)

    def _may_join(self, opts: AllreduceOptions, tensor: Tensor, op: Reduction) -> bool:
        """Return whether such a bucket can be reduced in device memory, and later."""
        group = self.group
        return (
            self.is_on
            and bool(opts.asyncOp)
            and timeout_of(opts) is None
            and group.exchange is not None
            and group.exchange.is_on
            and group.layer is None
            and tensor.layout is torch.strided
            and is_combined(tensor.dtype, op.name)
        )

    def _may_begin(self, tensor: Tensor) -> bool:
        """Return whether such a bucket may be the first one of an operation.

        About a short one nobody asks; behind a long one it needs no question.
        """
        relay = handle_of(self.group.group).relay(tensor.nbytes)
        return not is_short(tensor.nbytes) and relay is not None

    def _will_end(self) -> bool:
        """Return whether this is a backward pass, whose end runs the operation."""
        current = torch._C._current_graph_task_id()
        if current not in (-1, self._pass):
            engine = torch.autograd.Variable._execution_engine
            try:
                engine.queue_callback(self._end_pass)
            except RuntimeError:  # a pass that takes no callbacks
                return False
            self._pass = current
        return current != -1

    def _end_pass(self) -> None:
        """Run the operation in this thread, in whose stream the reducer goes on."""
        batch, self._batch = self._batch, None
        if batch is None:  # a pass inside of this one has run it
            return
        self._ending = get_ident()
        try:
            batch.wait()
        finally:
            self._ending = 0
            handle_of(self.group.group).runner.run_soon()  # what is queued behind it

    def is_ending(self) -> bool:
        """Return whether this thread ends a pass."""
        return self._ending == get_ident()


class Bucket:
    """One bucket, until its sum is there."""

    def __init__(self, tensor: Tensor, ready: Event) -> None:
        self.tensor = tensor
        self.ready = ready
        """When the device has filled it."""
        self.end: Future[Any] = Future()
        """Without a device, so torch does not look for the tensors in its value: the
        streams are in order when it has one."""
        self.future = self.end.then(_value)
        """C++ sees errors only in a child, see work.py."""


def _value(future: Future[Any]) -> object:
    return future.value()


class Batch:
    """Buckets that are one operation, which is queued with the first of them."""

    def __init__(
        self,
        buckets: DeviceBuckets,
        first: Bucket,
        opts: AllreduceOptions,
        op: Reduction,
    ) -> None:
        self._owner = buckets
        self._group = buckets.group
        self._opts, self._op = AllreduceOptions(), op
        self._opts.reduceOp = opts.reduceOp
        self._device = first.tensor.device
        self._lock = threading.Lock()
        """Held to add a bucket. Who reduces or completes them waits for it once: none
        is added to what is no longer queued."""
        self._buckets = [first]
        handle = handle_of(self._group.group)
        self._runner = handle.runner
        with self._group.error_context:
            self._work = handle.together(self._run, async_op=True, is_postponed=True)
        self._work.when_done(self._complete)

    def add(self, bucket: Bucket, op: Reduction) -> bool:
        """Reduce ``bucket`` with the others; return False if it is too late.

        Operations that were called meanwhile come before it, on all ranks.
        """
        is_alike = (op.name, bucket.tensor.device) == (self._op.name, self._device)
        with self._lock:
            fits = is_alike and self._runner.extend(self._work)
            if fits:
                self._buckets.append(bucket)
            return fits

    def wait(self) -> None:
        """Return when all buckets are reduced, which this thread may do itself."""
        with self._group.error_context:
            self._work.wait()

    def _run(self) -> None:
        """Reduce all buckets: in one exchange, or one by one."""
        with self._lock:
            buckets = self._buckets
        device = self._group.stage(self._device).device
        with device.guard():
            for bucket in buckets:
                device.wait_event(bucket.ready)
            self._reduce([bucket.tensor for bucket in buckets])
            if not self._owner.is_ending():
                device.synchronize()  # the reducer does not know our stream

    def _reduce(self, tensors: list[Tensor]) -> None:
        first, *others = tensors
        question = self._question(tensors)
        self._reduce_one(first, question)
        if question is None or not question.has_succeeded:
            for each in others:
                self._reduce_one(each, self._question([each]))

    def _question(self, tensors: list[Tensor]) -> Question | None:
        assert self._group.exchange is not None
        return self._group.exchange.question(self._opts, tensors, tensors)

    def _reduce_one(self, tensor: Tensor, question: Question | None) -> None:
        """Reduce a bucket through host memory, unless ``question`` does it."""
        group, both, op = self._group.group, [tensor], self._op.name
        stage = self._group.stage(self._device)
        relay = handle_of(group).relay(tensor.nbytes)
        if relay is not None:
            work, deliver = stage.all_reduce(group, relay, tensor, op, attempt=question)
        else:

            def body(_: list[Tensor], outs: list[Tensor]) -> object:
                return group.all_reduce(outs[0], op)

            work, deliver = stage.run(group, both, both, body, 1, attempt=question)
        work.wait()
        deliver()

    def _complete(self) -> None:
        """Complete the futures, which have no callbacks but the reducer's own."""
        error = self._work.error()
        if error is not None:
            error = self._group.error_context(error)
        with self._lock:  # the group may have ended while one was being added
            buckets = self._buckets
        for bucket in buckets:
            if error is None:
                bucket.end.set_result([bucket.tensor])
            else:
                bucket.end.set_exception(error)


class BucketWork(TorchWork):
    """What the reducer gets for one bucket."""

    recorded: AbstractContextManager[None] | None = None
    """What shows the first wait to a profiler."""

    def __init__(self, batch: Batch, bucket: Bucket) -> None:
        super().__init__()
        self._batch = batch
        self._bucket = bucket

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the sum; the operation has a time limit of its own."""
        operation, self.recorded = self.recorded or nullcontext(), None
        with operation:
            self._batch.wait()
        return True

    def get_future(self) -> Future[Any]:
        """Return a future with the bucket as its value."""
        return self._bucket.future
