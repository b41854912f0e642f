"""Callbacks of futures that call further operations, on all ranks in the same order.

They are added as those of torch's PowerSGD are: before the next operation is called.
Programs and callbacks sleep for a time that differs from rank to rank, so that the
calls of both come in another order on every rank.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from ringleader.backend.work import CALL_OPERATIONS
from ringleader.groups import runner as runner_module
from tests.kit.reference import (
    check,
    check_state,
    mse,
    net,
    single,
    tensor,
    train_alone,
    train_rank,
)
from tests.torch.scenario_ddp import BUCKET_MB, inner

CALL_OPERATIONS.add(__name__)
ROUNDS = 12
NUMBERS = 50
runner: Any = runner_module


def future_of(
    numbers: Tensor, group: dist.ProcessGroup | None = None
) -> Future[list[Tensor]]:
    """Of an all_reduce."""
    work = dist.all_reduce(numbers, group=group, async_op=True)
    return cast(Future[list[Tensor]], cast(Any, work).get_future())


def mine(rank: int, which: int) -> Tensor:
    return tensor(NUMBERS, seed=100 * which + rank)


def total(size: int, which: int) -> Tensor:
    return sum((mine(rank, which) for rank in range(size)), torch.zeros(()))


class Pauses:
    """Other ones on every rank."""

    def __init__(self, rank: int) -> None:
        self._random = random.Random(rank)

    def __call__(self) -> None:
        time.sleep(self._random.choice((0, 0, 0.0005, 0.003)))


def callbacks_that_reduce(rank: int, size: int) -> None:
    """Two rounds of equal length: a sum of others' numbers would look the same."""
    pause = Pauses(rank)
    ends: list[Future[None]] = []
    sums: dict[int, Tensor] = {}

    def start(which: int) -> None:
        first, second, third = (mine(rank, which + i) for i in range(3))

        def go_on(done: Future[list[Tensor]]) -> None:
            pause()
            sums[which] = done.value()[0]
            sums[which + 1] = future_of(second).wait()[0]

        def go_on_again(done: Future[None]) -> None:
            done.value()
            pause()
            dist.all_reduce(third)
            sums[which + 2] = third

        ends.append(future_of(first).then(go_on).then(go_on_again))

    for number in range(ROUNDS):
        start(4 * number)
        pause()
        sums[4 * number + 3] = mine(rank, 4 * number + 3)
        dist.all_reduce(sums[4 * number + 3])
    torch.futures.wait_all(ends)
    for which in range(4 * ROUNDS):
        check(sums[which], total(size, which), what=f"sum {which}")


def callbacks_that_only_begin_operations(rank: int, size: int) -> None:
    """Nobody waits for them in the callback."""
    pause = Pauses(rank)
    inside: list[Future[list[Tensor]]] = []

    def go_on(which: int, _: Future[list[Tensor]]) -> None:
        pause()
        inside.append(future_of(mine(rank, which)))

    for number in range(ROUNDS):
        future_of(mine(rank, 2 * number)).then(partial(go_on, 2 * number + 1))
        pause()
    dist.barrier()
    assert len(inside) == ROUNDS
    for number, future in enumerate(inside):
        check(future.wait()[0], total(size, 2 * number + 1), what=f"sum {number}")


def callbacks_of_one_group_that_use_another(rank: int, size: int) -> None:
    other = dist.new_group()
    pause = Pauses(rank)
    ends: list[Future[Tensor]] = []

    def go_on(done: Future[list[Tensor]]) -> Tensor:
        pause()
        return future_of(2 * done.value()[0], other).wait()[0]

    for number in range(ROUNDS):
        ends.append(future_of(mine(rank, number)).then(go_on))
        pause()
    for number, end in enumerate(ends):
        check(end.wait(), 2 * size * total(size, number), what=f"sum {number}")


def a_callback_that_fails(rank: int, size: int) -> None:
    """Its error is in its future; the group goes on."""

    def fail(_: Future[list[Tensor]]) -> None:
        dist.all_reduce(torch.ones(3))
        raise ValueError("no luck")

    end = future_of(torch.ones(2)).then(fail)
    later = torch.ones(4)
    dist.all_reduce(later)
    check(later, torch.full((4,), float(size)), what="later")
    with pytest.raises(RuntimeError, match="no luck"):
        end.wait()


def messages_while_a_callback_runs(rank: int, size: int) -> None:
    """They need the thread that waits for the callback."""
    got = torch.zeros(NUMBERS, dtype=torch.float64)

    def pass_on(_: Future[list[Tensor]]) -> None:
        work = dist.isend(mine(rank, 3), (rank + 1) % size)
        dist.recv(got, (rank - 1) % size)
        cast(dist.Work, work).wait()

    future_of(torch.ones(2)).then(pass_on).wait()
    assert torch.equal(got, mine((rank - 1) % size, 3))


def futures_while_a_message_is_awaited(rank: int, size: int) -> None:
    """A thread that waits for a message runs what is called meanwhile, and at once."""
    usual_s, runner.NAP_S = runner.NAP_S, 10.0
    try:
        got = torch.zeros(NUMBERS, dtype=torch.float64)
        receiving = cast(dist.Work, dist.irecv(got, (rank - 1) % size))
        time.sleep(0.2)  # by now it waits
        start_s = time.monotonic()
        for which in range(3):
            check(
                future_of(mine(rank, which)).wait()[0], total(size, which), what="sum"
            )
        assert time.monotonic() - start_s < runner.NAP_S
    finally:
        runner.NAP_S = usual_s
    sending = cast(dist.Work, dist.isend(mine(rank, 3), (rank + 1) % size))
    receiving.wait()
    sending.wait()
    assert torch.equal(got, mine((rank - 1) % size, 3))


def ddp_powersgd_hook_in_several_buckets(rank: int, size: int) -> None:
    """All layers have a bucket of their own, and most of them the same length."""
    deep = (8, *[12] * 8, 5)
    model = DDP(single(net(*deep)), bucket_cap_mb=BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=12,  # of all: nothing is lost
        start_powerSGD_iter=2,
        min_compression_rate=0.1,
    )
    pause = Pauses(rank)

    def hook(state: Any, bucket: Any) -> Any:  # noqa: ANN401 - torch compares them
        pause()
        return powerSGD_hook.powerSGD_hook(state, bucket)

    hook.__annotations__.clear()
    model.register_comm_hook(state, hook)
    train_rank(model, mse, rank)
    sizes = cast(Any, model)._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    assert len(str(sizes).split(",")) > 4, f"few buckets: {sizes}"
    check_state(inner(model), train_alone(net(*deep), mse, size), rel=2e-3)
