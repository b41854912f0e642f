"""Scenarios in which a rank is killed or makes a different call.

They take a further argument, so the feature matrix does not see them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from ringleader.backend.work import CALL_OPERATIONS
from tests.kit.reference import backward, mse, net, sgd, single, tensor

Ready = Callable[[], None]
WARM_STEPS = 3


def endlessly(step: Callable[[int], None], ready: Ready) -> None:
    """Until it is killed, or somebody else was."""
    number = 0
    while True:
        step(number)
        number += 1
        if number == WARM_STEPS:
            ready()


def training(model: nn.Module, rank: int) -> Callable[[int], None]:
    optimizer = sgd(model.parameters())

    def step(number: int) -> None:
        optimizer.zero_grad()
        backward(mse(model, rank, number % 10))
        optimizer.step()

    return step


# -- killed ------------------------------------------------------------------------


def train_ddp(rank: int, size: int, ready: Ready) -> None:
    endlessly(training(DDP(single(net()), bucket_cap_mb=0.0004), rank), ready)


def train_ddp_in_shared_buckets(rank: int, size: int, ready: Ready) -> None:
    """Two buckets of some megabytes: most of a step is their sum."""
    endlessly(
        training(DDP(single(net(8, 1500, 1500, 5)), bucket_cap_mb=4), rank), ready
    )


def train_ddp_with_a_hook_that_reduces_twice(
    rank: int, size: int, ready: Ready
) -> None:
    """Most of the time a callback waits for an operation that it has called."""

    def hook(state: object, bucket: Any) -> Any:  # noqa: ANN401 - torch compares them
        work = dist.all_reduce(bucket.buffer().div_(size), async_op=True)

        def twice(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            buffer = done.value()[0]
            again = dist.all_reduce(buffer.div(size), async_op=True)
            return cast(torch.Tensor, cast(Any, again).get_future().wait()[0])

        return cast(Any, work).get_future().then(twice)

    CALL_OPERATIONS.add(__name__)
    hook.__annotations__.clear()
    model = DDP(single(net()), bucket_cap_mb=0.0004)
    model.register_comm_hook(None, hook)
    endlessly(training(model, rank), ready)


def train_fsdp2(rank: int, size: int, ready: Ready) -> None:
    from tests.torch.scenario_sharding import shard

    endlessly(training(shard(single(net())), rank), ready)


def train_pipeline(rank: int, size: int, ready: Ready) -> None:
    from ringleader.parallel.parallelize import parallelize

    rows, width = 2 * size, 6
    x, y = tensor(rows, width, seed=1).float(), tensor(rows, width, seed=2).float()
    trainer = parallelize(
        single(net(*[width] * (size + 1))),
        "pipeline",
        optimizer=sgd,
        loss=F.mse_loss,
        microbatches=rows,
        split=[1] * (size - 1) + [size],
        example=(x, y),
    )

    def step(number: int) -> None:
        trainer.step(x, y)

    endlessly(step, ready)


def reduce_ahead(rank: int, size: int, ready: Ready) -> None:
    """Many operations in flight, waited for through their futures."""

    def step(number: int) -> None:
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]
        torch.futures.wait_all([cast(Any, work).get_future() for work in works])

    endlessly(step, ready)


def raise_in_the_middle(rank: int, size: int, ready: Ready) -> None:
    """Rank 0 ends with an exception while a callback of it waits for ever."""
    ready()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        at_it = threading.Event()

        def reduce_again(_: object) -> None:
            at_it.set()
            dist.all_reduce(torch.ones(1))

        work = dist.all_reduce(torch.ones(1), async_op=True)
        cast(Any, work).get_future().then(reduce_again)
        store.set("has a callback", "")
        at_it.wait(60)
        time.sleep(0.2)  # by now it waits
        raise ValueError("no luck")
    store.wait(["has a callback"])
    dist.all_reduce(torch.ones(1))
    dist.recv(torch.ones(1), 0)


# -- mismatched --------------------------------------------------------------------


def issue(rank: int, what: str) -> dist.Work:
    """Rank 0 makes one call and all others another."""
    numbers = torch.ones(10 if rank == 0 or what == "operation" else 11)
    if what == "operation" and rank != 0:
        work = dist.broadcast(numbers, 0, async_op=True)
    else:
        work = dist.all_reduce(numbers, async_op=True)
    return cast(dist.Work, work)


def mismatch_by_wait(rank: int, size: int, what: str) -> None:
    dist.all_reduce(torch.ones(5))
    issue(rank, what).wait()


def mismatch_by_future(rank: int, size: int, what: str) -> None:
    dist.all_reduce(torch.ones(5))
    cast(Any, issue(rank, what)).get_future().wait()


def mismatch_by_callback(rank: int, size: int, what: str) -> None:
    """The error passes through a chain of callbacks."""
    future = cast(Any, issue(rank, what)).get_future()
    future.then(lambda done: done.value()).then(lambda done: done.value()).wait()


def mismatch_in_a_later_call(rank: int, size: int, what: str) -> None:
    """The first wait is of a good call; the bad one was issued right behind it."""
    good = dist.all_reduce(torch.ones(5), async_op=True)
    bad = issue(rank, what)
    assert good is not None
    good.wait()
    bad.wait()


def mismatch_by_ddp(rank: int, size: int, what: str) -> None:
    """One rank is a collective ahead: it trains while the others reduce a loss."""
    model = DDP(single(net()), bucket_cap_mb=0.0004 if what == "size" else 25)
    step = training(model, rank)
    for number in range(2):
        step(number)
    if rank != 0:
        if what == "size":
            dist.all_reduce(torch.ones(1))
        else:
            dist.broadcast(torch.ones(1), 0)
    step(2)


def mismatch_by_ddp_hook(rank: int, size: int, what: str) -> None:
    """A hook sends fewer numbers, or another call, on one rank."""

    def hook(state: object, bucket: Any) -> Any:  # noqa: ANN401 - torch compares them
        buffer = bucket.buffer()
        if rank == 0:
            work = dist.all_reduce(buffer, async_op=True)
        elif what == "size":
            work = dist.all_reduce(buffer[:-1].clone(), async_op=True)
        else:
            work = dist.broadcast(buffer, 0, async_op=True)
        return cast(Any, work).get_future().then(lambda done: done.value()[0])

    hook.__annotations__.clear()
    model = DDP(single(net()))
    model.register_comm_hook(None, hook)
    step = training(model, rank)
    for number in range(3):
        step(number)
