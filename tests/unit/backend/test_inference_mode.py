"""Calls in torch's inference mode and out of it share the memory of their group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from ringleader.backend.staging import HostStaging
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_world

COUNT = 20_003
"""Float32 elements: too many for an exchange."""


class Queue:
    """A device that copies at once; its tensors are ordinary ones."""

    @contextmanager
    def guard(self) -> Iterator[None]:
        yield

    d2h_stream = h2d_stream = callers_stream = guard

    def record_event(self) -> Queue:
        return self

    def synchronize(self) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_stream(self, tensor: Tensor) -> None: ...

    def host_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def pin(self, _: Tensor) -> Callable[[], None]:
        return lambda: None


def all_reduce(group: Group, stage: HostStaging, tensor: Tensor) -> None:
    relay = handle_of(group).relay(tensor.nbytes)
    assert relay is not None
    stage.all_reduce(group, relay, tensor, "sum", async_op=False)


def broadcast(group: Group, stage: HostStaging, tensor: Tensor) -> None:
    def body(ins: list[Tensor], outs: list[Tensor]) -> object:
        return group.broadcast((ins or outs)[0], 1)

    ins, outs = ([tensor], []) if group.rank == 1 else ([], [tensor])
    stage.run(group, ins, outs, body, 1, async_op=False)


@pytest.mark.parametrize("run", [all_reduce, broadcast])
@pytest.mark.parametrize("inferred", [{0}, {0, 1}, {1}])
def test_the_mode_may_begin_and_end_between_calls(
    run: Callable[..., Any], inferred: set[int]
) -> None:
    """Memory that is kept for later calls would else be that of one mode only."""

    def body(group: Group) -> list[Tensor]:
        stage, seen = HostStaging(Queue()), []
        for turn in range(3):
            tensor = torch.full((COUNT,), 1.0 + group.rank)
            with torch.inference_mode(turn in inferred):
                run(group, stage, tensor)
            seen.append(tensor)
        stage.close()
        return seen

    wanted = torch.full((COUNT,), 3.0 if run is all_reduce else 2.0)
    for seen in run_world(2, body, "shm"):
        assert all(torch.equal(tensor, wanted) for tensor in seen)
