"""Shows our operations to torch.profiler, under the names that torch's own have.

Calls that pass through torch's dispatcher are recorded there, and C++ backends add what
runs. Ours are called in Python, past both. So a call that is made while a profiler runs
passes through here: ``c10d::allreduce_`` is the call, and ``ringleader:all_reduce`` the
time that this thread spends in the operation. That is in the call, or in the wait for
an asynchronous one: a profiler sees the threads of the program and not the engine's,
and frees its memory while an operation may go on. Both have the sizes of tensors.

Without a profiler a call reads one variable for this, which takes some nanoseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

P = ParamSpec("P")
R = TypeVar("R")

OPERATIONS = {
    "all_gather_single": ("_allgather_base_", "all_gather"),
    "all_gather_single_coalesced": ("allgather_into_tensor_coalesced_", "all_gather"),
    "all_to_all_single": ("alltoall_base_", "all_to_all"),
    "allgather": ("allgather_", "all_gather"),
    "allgather_coalesced": ("allgather_coalesced_", "all_gather"),
    "allreduce": ("allreduce_", "all_reduce"),
    "allreduce_coalesced": ("allreduce_coalesced_", "all_reduce"),
    "allreduce_coded": ("allreduce_", "all_reduce"),
    "alltoall": ("alltoall_", "all_to_all"),
    "barrier": ("barrier", "barrier"),
    "broadcast": ("broadcast_", "broadcast"),
    "gather": ("gather_", "gather"),
    "gather_single": ("gather_", "gather"),
    "recv": ("recv_", "recv"),
    "recv_anysource": ("recv_any_source_", "recv"),
    "reduce": ("reduce_", "reduce"),
    "reduce_scatter": ("reduce_scatter_", "reduce_scatter"),
    "reduce_scatter_single": ("_reduce_scatter_base_", "reduce_scatter"),
    "reduce_scatter_single_coalesced": (
        "reduce_scatter_tensor_coalesced_",
        "reduce_scatter",
    ),
    "scatter": ("scatter_", "scatter"),
    "send": ("send", "send"),
}
"""Methods of a process group -> operator of torch, operation."""
IN_PLACE = {"all_reduce", "barrier", "broadcast", "recv", "reduce", "send"}
"""Operations whose methods have no argument for results before what they read."""
MESSAGES = {"send", "recv", "recv_anysource"}
"""Methods that always return before the operation has ended."""


class _Here(threading.local):
    is_recorded = False
    """Whether this thread is in a call that is recorded; parts of it are not."""
    backward_pass = -1
    """The last backward pass that waits for its operations at its end."""
    pending: list[Any] | None = None
    """Operations of that pass."""


_here = _Here()


def recorder(method: Callable[P, R]) -> Callable[P, R] | None:
    """Return what calls ``method`` and records it; None as a part of such a call."""
    return None if _here.is_recorded else partial(record, method)


def recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a process group that records itself, if a profiler runs."""
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        if profiler._is_profiler_enabled and (run := recorder(getattr(self, name))):
            return run(*args, **named)
        return method(self, *args, **named)

    return call


def operation(title: str, inputs: list[Tensor]) -> AbstractContextManager[None]:
    """Return what shows the time of an operation that no method of a group runs."""
    is_shown = profiler._is_profiler_enabled
    return _Operation(title, inputs) if is_shown else nullcontext()


def record(
    method: Callable[..., Any], *args: Any, has_operator: bool = False, **named: Any
) -> Any:
    """Call ``method``; ``has_operator``: the dispatcher has recorded the call."""
    name = method.__name__
    operator, title = OPERATIONS[name]
    source = 0 if title in IN_PLACE else 1
    running = _Operation(title, _tensors(args[source : source + 1]))
    given = [a for a in args if isinstance(a, Tensor) or _is_list(a)]
    call: Any = nullcontext()
    if not has_operator:
        call = _RecordFunctionFast(f"c10d::{operator}", given)
    waits = not (name in MESSAGES or any(getattr(a, "asyncOp", False) for a in args))
    _here.is_recorded = True
    try:
        with call, running if waits else nullcontext():
            work = method(*args, **named)
    finally:
        _here.is_recorded = False
    if not waits and work is not None:
        work.recorded = running
        _wait_in_backward_pass(work)
    return work


class _Operation(AbstractContextManager[None]):
    """The event of one operation: the time in which this is entered."""

    def __init__(self, title: str, inputs: list[Tensor]) -> None:
        self._title = f"ringleader:{title}"
        self._inputs = inputs
        self._event: Any = None

    def __enter__(self) -> None:
        begin: Any = torch.autograd._record_function_with_args_enter  # type: ignore[attr-defined]
        self._event = begin(self._title, *self._inputs)

    def __exit__(self, *_: object) -> None:
        torch.ops.profiler._record_function_exit._RecordFunction(self._event)


def _wait_in_backward_pass(work: Any) -> None:
    """Let a backward pass wait at its end in Python, before the reducer does in C++."""
    current = torch._C._current_graph_task_id()
    if current == -1:
        return
    if current != _here.backward_pass:
        try:
            torch.autograd.Variable._execution_engine.queue_callback(_end_pass)
        except RuntimeError:  # a pass that takes no callbacks
            return
        _here.backward_pass, _here.pending = current, []
    if _here.pending is not None:
        _here.pending.append(work)


def _end_pass() -> None:
    works, _here.pending = _here.pending or [], None
    for work in works:
        with suppress(Exception):  # whoever waits for it gets the error
            work.wait()


def _is_list(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(a, Tensor) for a in given)


def _tensors(given: Any) -> list[Tensor]:
    """Return all tensors in lists of lists."""
    if isinstance(given, Tensor):
        return [given]
    if not isinstance(given, list | tuple):
        return []
    return [tensor for each in given for tensor in _tensors(each)]
