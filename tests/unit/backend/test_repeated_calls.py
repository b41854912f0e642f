"""Calls of torch that take the short way, and those that must not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, TypeVar, cast

import pytest
import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOp,
)

from ringleader.backend.repeated_calls import RAN, RepeatedCalls
from ringleader.errors import DeadlineExceeded
from ringleader.groups.group import Group, handle_of
from ringleader.groups.work import Work
from ringleader.testing.threaded_world import run_threads, run_world, world

T = TypeVar("T")
WITHIN_S = 60.0


def options(made: T, **fields: object) -> T:
    """``made``, as torch's functions fill it in: calls are synchronous."""
    for name, value in ({"asyncOp": False} | fields).items():
        setattr(made, name, value)
    return made


def calls_of(group: Group) -> RepeatedCalls:
    calls = RepeatedCalls(group, cast(Any, nullcontext()), {})
    calls.is_allowed = True
    return calls


Attempt = Callable[[RepeatedCalls], Work | None]
ONE = torch.ones(1)
OTHERS: dict[str, Attempt] = {
    "a tensor that is in no list": lambda c: c.all_reduce(
        torch.tensor(1.0), options(AllreduceOptions())
    ),
    "no tensor": lambda c: c.all_reduce([], options(AllreduceOptions())),
    "two tensors": lambda c: c.broadcast([ONE, ONE], options(BroadcastOptions())),
    "no options": lambda c: c.all_reduce([ONE], None),
    "a root instead of options": lambda c: c.broadcast([ONE], 0),
    "an asynchronous call with a limit of its own": lambda c: c.all_reduce(
        [ONE], options(AllreduceOptions(), asyncOp=True, timeout=timedelta(seconds=5))
    ),
    "another reduction": lambda c: c.all_reduce(
        [ONE], options(AllreduceOptions(), reduceOp=ReduceOp.MAX)
    ),
    "another dtype": lambda c: c.all_reduce(
        [ONE.double()], options(AllreduceOptions())
    ),
    "another length": lambda c: c.all_reduce(
        [torch.ones(2)], options(AllreduceOptions())
    ),
    "a kind that was never run": lambda c: c.all_gather(
        torch.ones(2), ONE, options(AllgatherOptions())
    ),
}


@pytest.mark.parametrize("attempt", OTHERS.values(), ids=list(OTHERS))
def test_other_calls_take_the_general_way(attempt: Attempt) -> None:
    def live(group: Group) -> None:
        for _ in range(2):
            group.all_reduce(torch.ones(1))
        assert attempt(calls_of(group)) is None

    run_world(2, live)


def test_a_call_like_an_earlier_one_runs() -> None:
    def live(group: Group) -> None:
        group.all_reduce(torch.ones(1))
        calls, tensor = calls_of(group), torch.full((1,), 3.0)
        assert calls.all_reduce([tensor], options(AllreduceOptions())) is RAN
        assert tensor.item() == 6.0
        work = calls.all_reduce([tensor], options(AllreduceOptions(), asyncOp=True))
        assert work is not None
        work.wait()
        assert tensor.item() == 12.0
        assert calls.count == 2
        calls.is_allowed = False
        assert calls.all_reduce([tensor], options(AllreduceOptions())) is None

    run_world(2, live)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_call_has_the_limit_of_its_options(transport: str) -> None:
    has_failed = threading.Event()

    def limited(limit_s: float) -> AllreduceOptions:
        return options(AllreduceOptions(), timeout=timedelta(seconds=limit_s))

    def first(group: Group) -> str:
        calls, tensor = calls_of(group), torch.ones(1)
        group.all_reduce(tensor)
        assert calls.all_reduce([tensor], limited(WITHIN_S)) is RAN
        assert handle_of(group).runner.waiter.options is None
        with pytest.raises(DeadlineExceeded) as caught:
            calls.all_reduce([tensor], limited(0.3))
        has_failed.set()
        return str(caught.value)

    def second(group: Group) -> str:
        for _ in range(2):
            group.all_reduce(torch.ones(1))
        assert has_failed.wait(WITHIN_S)
        return ""

    with world(2, transport) as groups:
        text, _ = run_threads([lambda: first(groups[0]), lambda: second(groups[1])])
    assert "waited 0.3 s" in text
    assert "all_reduce" in text
