"""``ProgramRecorder``: records when the program is held up, and its training steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ringleader.engine.observer import now_s
from ringleader.groups.caller_observer import installed
from ringleader.tracing.group_recorder import is_program_thread
from ringleader.tracing.recorder import BLOCKED, ENCODE, SPAN, STEP, Recorder

_engine: Any = torch.autograd.Variable._execution_engine


class ProgramRecorder:
    """Observes the threads of the program; see groups/caller_observer.py.

    DistributedDataParallel waits for its buckets in C++, at the end of the backward
    pass. torch's callbacks at that end run in the order in which they were queued: ours
    is queued with the first bucket, so it runs before that wait, and queues another one
    that runs after it.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._backward = -1
        """torch's number of the backward pass whose end is being observed."""
        self._since_s = now_s()
        self._num_steps = 0
        self._is_explicit = False
        self._optimizer: weakref.ref[Any] | None = None
        self._optimizer_since_s = 0.0
        self._handles: list[Any] = []

    def start(self) -> None:
        """Observe from now on."""
        self._since_s = now_s()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        installed.observer = self

    def stop(self) -> None:
        """Observe no more."""
        if installed.observer is self:
            installed.observer = None
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # -- waiting -------------------------------------------------------------------

    def queued(self) -> None:
        """See CallerObserver."""
        task: int = torch._C._current_graph_task_id()
        if task not in (-1, self._backward):
            self._backward = task
            _engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        since_s = now_s()

        def after_buckets() -> None:
            self._recorder.record(BLOCKED, since_s, now_s())

        _engine.queue_callback(after_buckets)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """See CallerObserver."""
        if not is_program_thread():
            yield
            return
        since_s = now_s()
        try:
            yield
        finally:
            self._recorder.record(BLOCKED, since_s, now_s())

    @contextmanager
    def together(self) -> Iterator[None]:
        """See CallerObserver."""
        since_s = now_s()
        try:
            yield
        finally:
            until_s = now_s()
            self._recorder.record(ENCODE, since_s, until_s)
            if is_program_thread():
                self._recorder.record(BLOCKED, since_s, until_s)

    @contextmanager
    def phase(self, name: str, *, holds_up: bool) -> Iterator[None]:
        """See CallerObserver."""
        since_s = now_s()
        try:
            yield
        finally:
            self.phase_ended(name, since_s)
            if holds_up and is_program_thread():
                self._recorder.record(BLOCKED, since_s, now_s())

    def phase_ended(self, name: str, since_s: float) -> None:
        """See CallerObserver."""
        self._recorder.record(SPAN, since_s, now_s(), name)

    # -- steps ---------------------------------------------------------------------

    def step(self) -> None:
        """End a step where the program says so; optimizers end none from now on."""
        self._is_explicit = True
        self._end_step()

    def _end_step(self) -> None:
        until_s = now_s()
        self._num_steps += 1
        self._recorder.record(STEP, self._since_s, until_s, self._num_steps)
        self._since_s = until_s

    def _before_optimizer(self, *_: object) -> None:
        self._optimizer_since_s = now_s()

    def _after_optimizer(self, optimizer: Any, *_: object) -> None:  # noqa: ANN401
        """End a step with the first optimizer: a program may have several."""
        self._recorder.record(SPAN, self._optimizer_since_s, now_s(), "optimizer")
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer and not self._is_explicit:
            self._end_step()
