"""A simulated accelerator, whose copies happen as late as they may.

Its tensors are ordinary ones. What makes them a device's is that copies made within
``d2h_stream`` and ``h2d_stream`` are only noted down, and happen when somebody waits
for them. So whoever forgets to wait reads what was there before.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ringleader.backend.device import Event

PACES = ["late", "soon", "mixed"]
"""Progress that copies make by themselves; the user's program is always late."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in a queue; everything before it has happened when it has."""

    queue: Queue
    position: int

    def synchronize(self) -> None:
        with self.queue.lock:
            self.queue.force(self.position)

    def has_happened(self) -> bool:
        return self.queue.done >= self.position


class Queue:
    """Things to do in order, each of them done as late as its users allow."""

    def __init__(self, name: str, lock: Any) -> None:  # noqa: ANN401 - RLock is no type
        self.name = name
        self.lock = lock
        self.done = 0
        self.known: set[int] = set()
        """Storages that may not be given away before this queue is through."""
        self._todo: deque[Moment | Callable[[], None]] = deque()

    def ask(self, what: Moment | Callable[[], None]) -> None:
        with self.lock:
            self._todo.append(what)

    def mark(self) -> Moment:
        with self.lock:
            return Moment(self, self.done + len(self._todo))

    def force(self, position: int) -> None:
        """Do everything before ``position``, and what that has to wait for."""
        while self.done < position:
            what = self._todo[0]
            if isinstance(what, Moment):
                what.queue.force(what.position)
            self._step(what)

    def advance(self, num_steps: int) -> None:
        """Go on by so many steps, but force nobody."""
        for _ in range(num_steps):
            if not self._todo:
                return
            what = self._todo[0]
            if isinstance(what, Moment) and not what.has_happened():
                return
            self._step(what)

    def _step(self, what: Moment | Callable[[], None]) -> None:
        if not isinstance(what, Moment):
            with _disable_current_modes(), torch.no_grad():  # whoever it is that waits
                what()
        self._todo.popleft()
        self.done += 1


class Accelerator:
    """A device of the user's queue and two for copies; one rank's."""

    def __init__(self, pace: str = "late", seed: int = 0) -> None:
        self._lock = threading.RLock()
        self.main, self.out, self.into = (
            Queue(name, self._lock) for name in ("main", "out", "in")
        )
        self._current = threading.local()
        self._pace = pace
        self._random = random.Random(seed)
        self._host: list[tuple[Any, StorageWeakRef]] = []
        self.mistakes: list[str] = []
        """Memory that was touched without right."""
        self.num_copies = 0

    # What staging asks of it.

    def guard(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def d2h_stream(self) -> AbstractContextManager[Any]:
        return self._copying(self.out)

    def h2d_stream(self) -> AbstractContextManager[Any]:
        return self._copying(self.into)

    def callers_stream(self) -> AbstractContextManager[Any]:
        return self._copying(self.main)

    def record_event(self) -> Moment:
        return self._queue().mark()

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Moment)
        self._queue().ask(event)
        self._go_on()

    def record_stream(self, tensor: Tensor) -> None:
        self._queue().known.add(_storage(tensor))

    def host_buffer(self, num_bytes: int) -> Tensor:
        if not num_bytes:
            return torch.empty(0, dtype=torch.uint8)
        array = np.full(num_bytes, 0xAB, dtype=np.uint8)  # stays when others let go
        memory = torch.from_numpy(array)
        self._host.append((array, _weak(memory)))
        return memory

    def pin(self, memory: Tensor) -> Callable[[], None]:
        entry = (memory.numpy(), _weak(memory))
        self._host.append(entry)

        def forget() -> None:
            self._host = [e for e in self._host if e is not entry]

        return forget

    # What the user does with it.

    def compute(self, kernel: Callable[[], object]) -> None:
        """The user's program: done in the order of its queue, later."""

        def run() -> None:
            kernel()

        self.main.ask(run)
        self._go_on()

    def read(self, tensor: Tensor) -> Tensor:
        """Set the values that the user's program sees in ``tensor`` from now on."""
        seen = torch.zeros_like(tensor)
        self.compute(lambda: seen.copy_(tensor))
        self.main.mark().synchronize()
        return seen

    def host_rooms(self) -> int:
        """Number of requests for host memory, those of no bytes not counted."""
        return len(self._host)

    # How it works.

    @contextmanager
    def _copying(self, queue: Queue) -> Iterator[None]:
        assert self._queue() is self.main, "queues do not nest"
        self._current.queue = queue
        try:
            with _Later(self, queue):
                yield
        finally:
            self._current.queue = self.main
        self._go_on()

    def _queue(self) -> Queue:
        queue: Queue = getattr(self._current, "queue", self.main)
        return queue

    def _go_on(self) -> None:
        """Let the queues come as far as the pace says. The user's is always late."""
        with self._lock:
            if self._pace != "late":
                for queue in self._random.sample([self.out, self.into], 2):
                    is_soon = self._pace == "soon"
                    queue.advance(1_000 if is_soon else self._random.randrange(3))
            if self._pace == "mixed":
                self.main.advance(self._random.randrange(2))

    def copy_later(self, queue: Queue, target: Tensor, source: Tensor) -> None:
        """Note down a copy; it must be allowed to, then and now."""
        if not target.numel():
            return
        write, read = self._place(queue, target), self._place(queue, source)

        def copy() -> None:
            write().copy_(read())
            self.num_copies += 1

        queue.ask(copy)

    def compute_later(
        self, queue: Queue, kernel: Callable[[], object], tensors: list[Tensor]
    ) -> None:
        """Note down a kernel on these tensors."""
        for tensor in tensors:
            self._place(queue, tensor)

        def run() -> None:
            kernel()

        queue.ask(run)

    def _place(self, queue: Queue, tensor: Tensor) -> Callable[[], Tensor]:
        """The tensor as the device finds it when it gets there."""
        for array, storage in self._host:
            start = tensor.data_ptr() - array.ctypes.data
            if 0 <= start < len(array):
                room = torch.from_numpy(array[start : start + tensor.nbytes])
                room = room.view(tensor.dtype)
                return lambda: self._check_host(storage, room, queue)
        if queue is not self.main and _storage(tensor) not in queue.known:
            shape = list(tensor.shape)
            self.mistakes.append(f"{queue.name} uses {shape} and never said so")
        return lambda: tensor

    def is_host(self, tensor: Tensor) -> bool:
        """Return whether the device can reach this host memory."""
        at = tensor.data_ptr()
        return any(0 <= at - array.ctypes.data < len(array) for array, _ in self._host)

    def _check_host(
        self, storage: StorageWeakRef, room: Tensor, queue: Queue
    ) -> Tensor:
        if storage.expired():  # type: ignore[no-untyped-call]
            self.mistakes.append(f"{queue.name} copies host memory that was freed")
            return torch.zeros_like(room)
        return room


class _Later(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns copies and sums into notes; else only views may happen on a device."""

    VIEWS = ("detach", "view", "slice", "alias")
    KERNELS = ("add", "mul", "maximum", "minimum", "bitwise_or", "div")

    def __init__(self, device: Accelerator, queue: Queue) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._queue = queue

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self,
        func,  # noqa: ANN001 - as torch has it
        types,  # noqa: ANN001
        args=(),  # noqa: ANN001
        kwargs=None,  # noqa: ANN001
    ) -> object:
        if func is torch.ops.aten.copy_.default:
            self._device.copy_later(self._queue, args[0], args[1])
            return args[0]
        name = func.overloadpacket.__name__
        if name == "clone" or (name == "contiguous" and not args[0].is_contiguous()):
            fresh = torch.zeros_like(args[0], memory_format=torch.contiguous_format)
            self._device.record_stream(fresh)
            self._device.copy_later(self._queue, fresh, args[0])
            return fresh
        every = [*args, *(kwargs or {}).values()]
        is_host = all(self._device.is_host(t) for t in every if isinstance(t, Tensor))
        if name in self.KERNELS and not is_host:
            given = dict(kwargs or {})
            out = given.setdefault("out", None)
            if out is None:
                out = given["out"] = torch.zeros_like(args[0])
                self._device.record_stream(out)
            kernel = partial(getattr(torch, name), *args, **given)
            tensors = [each for each in (*args, out) if isinstance(each, Tensor)]
            self._device.compute_later(self._queue, kernel, tensors)
            return out
        assert name in self.VIEWS or is_host, f"{func} is not simulated"
        return func(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _weak(memory: Tensor) -> StorageWeakRef:
    return StorageWeakRef(memory.untyped_storage())  # type: ignore[no-untyped-call]
