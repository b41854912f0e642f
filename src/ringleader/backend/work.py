"""Our operations as torch's Work and Future.

Two properties of torch's futures determine the design:
* A failed Python future looks successful to C++. Only its child, made by ``then``,
  carries an error that DDP sees. ``get_future`` therefore returns the child.
* ``set_result`` runs the callbacks of the future, which may issue another collective
  and wait for it. Futures are therefore completed in a thread pool and never in the
  engine's thread, while the engine releases ``wait`` directly. Ranks must make these
  calls in the same order, too: see groups/callback_turns.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work as TorchWork
from torch.futures import Future

from ringleader.backend.completion_pool import CompletionPool, Task
from ringleader.backend.device import Device, results_stream
from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded
from ringleader.groups.work import Work

NO_TIMEOUT = timedelta(0)
CALL_OPERATIONS = {"torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"}
"""Modules whose callbacks call operations. They add them as soon as they have the
future, before another operation is called; else there would be no order to keep."""
WAIT_FOR_NONE = {
    "torch.autograd.graph",  # the reducer of DDP, called by a backward pass in C++
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "ringleader.compression.comm_hook",
    "ringleader.compression.communicator",
}
"""Modules that ask for futures and do not wait for them in a backward pass."""


def once(action: Task) -> Task:
    """Return a function that runs ``action`` the first time only."""
    lock, left = threading.Lock(), [action]

    def run() -> None:
        with lock:
            if left:
                left.pop()()

    return run


AddContext = Callable[[BaseException], BaseException]
"""Returns an error with more text; see ErrorContext."""


class BackendWork(TorchWork):
    """The handle of one or several operations, with the tensors they write."""

    recorded: AbstractContextManager[None] | None = None
    """What shows the first wait to a profiler."""

    def __init__(
        self,
        parts: Sequence[Work],
        result: list[Tensor],
        completions: CompletionPool,
        *,
        add_context: AddContext,
        deliver: Callable[[], None] | None = None,
        device: Device | None = None,
    ) -> None:
        super().__init__()
        self._parts = parts
        self._result = result or [torch.empty(0, device="cpu")]
        """At least one: C++ does not accept a future without tensors."""
        self._completion_pool = completions
        self._add_context = add_context
        self._deliver = deliver
        """Makes results available to the caller: orders its stream after our copies."""
        self._device = device
        """What copies the results; futures are completed in a stream of it. Completing
        one lets its stream wait, so it should not be one in which the program computes.
        """
        self._future: Future[Any] | None = None
        self._asker = 0
        """The thread that is asking for the future just now."""
        self._has_turn = False
        """Whether callbacks of the future call operations."""

    @classmethod
    def of_all(
        cls,
        handles: Sequence[Self],
        completions: CompletionPool,
        *,
        add_context: AddContext,
        result: list[Tensor] | None = None,
    ) -> Self:
        """Combine several handles; ``result`` defaults to all their tensors."""

        def deliver() -> None:
            for handle in handles:
                if handle._deliver is not None:
                    handle._deliver()

        parts = [part for handle in handles for part in handle._parts]
        if result is None:
            result = [tensor for handle in handles for tensor in handle._result]
        device = handles[0]._device if handles else None
        return cls(
            parts,
            result,
            completions,
            add_context=add_context,
            deliver=deliver,
            device=device,
        )

    # C++ calls only wait and get_future; the rest is for Python callers.

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for success; raises our typed error if an operation failed."""
        if self.recorded is not None:
            operation, self.recorded = self.recorded, None
            with operation:
                return self.wait(timeout)
        limit_s = 0.0 if timeout is NO_TIMEOUT else timeout.total_seconds()
        deadline = Deadline.after(limit_s) if limit_s > 0 else None
        for part in self._parts:
            try:
                part.wait(deadline.left_s() if deadline else None)
            except Exception as exc:
                if not part.done() and isinstance(exc, TimeoutError):
                    raise DeadlineExceeded("Work.wait", str(exc)) from exc
                better = self._add_context(exc)
                if better is exc:
                    raise
                raise better from exc
        if self._deliver is not None:
            self._deliver()
        return True

    def get_future(self) -> Future[Any]:
        """Return a future with the tensors as its value."""
        if self._future is None:
            devices = list({t.device for t in self._result if not t.is_cpu})
            base: Future[Any] = Future(devices=devices or None)  # type: ignore[arg-type]
            who = _module_of_caller(sys._getframe())
            self._has_turn = who in CALL_OPERATIONS
            self._asker = get_ident()
            self._follow(base, 0)
            self._asker = 0
            self._future = base.then(_value)
            if who is not None and who not in WAIT_FOR_NONE:
                self._run_soon()
        return self._future

    def _follow(self, base: Future[Any], index: int) -> None:
        """Complete ``base`` when all parts from ``index`` on are done."""
        if index < len(self._parts):
            self._parts[index].when_done(lambda: self._follow(base, index + 1))
        elif self._asker == get_ident():  # all are done, and nothing follows the future
            self._complete(base)
        else:
            complete = partial(self._complete, base)
            queue = self._parts[-1].queue if self._has_turn else None
            turn = None if queue is None else queue.begin_turn()
            self._completion_pool.run(
                complete if turn is None else partial(turn.run, complete)
            )

    def _run_soon(self) -> None:
        """Somebody may wait for the future, which torch does not tell us."""
        for part in self._parts:
            if part.queue is not None:
                part.queue.run_soon()

    def _complete(self, base: Future[Any]) -> None:
        if self._device is None:
            self._set(base)
            return
        with results_stream(self._device):
            self._set(base)

    def _set(self, base: Future[Any]) -> None:
        if base.done():  # a signal interrupted this after it had done so
            return
        error = self.exception()
        if error is not None:
            error = self._add_context(error)
        else:
            try:
                if self._deliver is not None:
                    self._deliver()
            except Exception as exc:  # noqa: BLE001 - the future carries it to the user
                error = exc
        if error is None:
            base.set_result(self._result)
        else:
            base.set_exception(error)

    def is_completed(self) -> bool:
        """Return whether it has succeeded or failed."""
        return all(part.done() for part in self._parts)

    def is_success(self) -> bool:
        """Return whether it has succeeded."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error; None while it runs and after success."""
        errors = (part.error() for part in self._parts)
        return next((e for e in errors if e is not None), None)

    def result(self) -> list[Tensor]:
        """Return the tensors that it writes."""
        return self._result

    def synchronize(self) -> None:
        """Wait; torch's CUDA code calls it by this name."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank that sent a received message, or -1."""
        source = self._parts[0].source
        return -1 if source is None else source

    _source_rank = source_rank


def _value(future: Future[Any]) -> object:
    return future.value()


def _module_of_caller(frame: FrameType) -> str | None:
    """Return who calls the function of ``frame``; None in a thread of autograd."""
    caller = frame.f_back
    return None if caller is None else caller.f_globals.get("__name__")
