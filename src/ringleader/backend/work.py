"""Our operations as torch sees them: Work and Future.

Rules that were learnt the hard way (torch-backend.md has the evidence):
* a Python future that failed looks successful to C++; only its child, made by ``then``,
  holds an error that DDP can see. So we hand out the child;
* ``set_result`` runs whatever was attached to the future, and that may issue another
  collective and wait for it. So futures are completed in threads of their own, never in
  the engine's, while ``wait`` is released by the engine directly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work as TorchWork
from torch.futures import Future

from ringleader.backend.completion_pool import CompletionPool, Task
from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded
from ringleader.groups.work import Work

NO_TIMEOUT = timedelta(0)


def once(action: Task) -> Task:
    """``action``, but only the first time."""
    lock, left = threading.Lock(), [action]

    def run() -> None:
        with lock:
            if left:
                left.pop()()

    return run


AddContext = Callable[[BaseException], BaseException]
"""Adds to an error what a torch user needs to know."""


class BackendWork(TorchWork):
    """One or several operations of a group, and the tensors they fill."""

    def __init__(
        self,
        parts: Sequence[Work],
        result: list[Tensor],
        completions: CompletionPool,
        *,
        add_context: AddContext,
        arrive: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._parts = parts
        self._result = result or [torch.empty(0, device="cpu")]
        """At least one: C++ cannot take a future of nothing."""
        self._completion_pool = completions
        self._error_context = add_context
        self._arrive = arrive
        """Makes what the host received visible to the caller's stream."""
        self._future: Future[Any] | None = None

    @classmethod
    def of_all(
        cls,
        handles: Sequence[Self],
        completions: CompletionPool,
        *,
        add_context: AddContext,
        result: list[Tensor] | None = None,
    ) -> Self:
        """One handle for several; ``result`` None: all that they fill."""

        def arrive() -> None:
            for handle in handles:
                if handle._arrive is not None:
                    handle._arrive()

        parts = [part for handle in handles for part in handle._parts]
        if result is None:
            result = [tensor for handle in handles for tensor in handle._result]
        return cls(parts, result, completions, add_context=add_context, arrive=arrive)

    # C++ calls only wait and get_future; the rest is for Python callers.

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return when it has succeeded, raise our typed error when it failed."""
        limit_s = timeout.total_seconds()
        deadline = Deadline.after(limit_s) if limit_s > 0 else None
        for part in self._parts:
            try:
                part.wait(deadline.left_s() if deadline else None)
            except Exception as exc:
                if not part.done():
                    raise DeadlineExceeded("the operation", str(exc)) from exc
                better = self._error_context(exc)
                if better is exc:
                    raise
                raise better from exc
        if self._arrive is not None:
            self._arrive()
        return True

    def get_future(self) -> Future[Any]:
        """The same outcome as a future, whose value are the tensors."""
        if self._future is None:
            devices = sorted({str(t.device) for t in self._result if not t.is_cpu})
            base: Future[Any] = Future(devices=devices or None)  # type: ignore[arg-type]
            if self.is_completed():
                self._complete(base)
            else:
                self._follow(base, 0)
            self._future = base.then(_value)
        return self._future

    def _follow(self, base: Future[Any], index: int) -> None:
        """Complete ``base`` when all parts from ``index`` on have ended."""
        if index < len(self._parts):
            self._parts[index].when_done(lambda: self._follow(base, index + 1))
        else:
            self._completion_pool.run(lambda: self._complete(base))

    def _complete(self, base: Future[Any]) -> None:
        error = self.exception()
        if error is not None:
            error = self._error_context(error)
        else:
            try:
                if self._arrive is not None:
                    self._arrive()
            except Exception as exc:  # noqa: BLE001 - it reaches the user by the future
                error = exc
        if error is None:
            base.set_result(self._result)
        else:
            base.set_exception(error)

    def is_completed(self) -> bool:
        """Whether it has ended, well or badly."""
        return all(part.done() for part in self._parts)

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Why it failed; None while under way and after success."""
        errors = (part.error() for part in self._parts)
        return next((e for e in errors if e is not None), None)

    def result(self) -> list[Tensor]:
        """The tensors it fills."""
        return self._result

    def synchronize(self) -> None:
        """Wait; torch's CUDA code knows it by this name."""
        self.wait()

    def source_rank(self) -> int:
        """Who sent the message that was received."""
        source = self._parts[0].source
        return -1 if source is None else source

    _source_rank = source_rank


def _value(future: Future[Any]) -> object:
    return future.value()
