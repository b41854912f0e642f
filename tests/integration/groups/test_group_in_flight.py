"""Many operations in flight, from several threads, and ranks that are never in step."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ringleader.groups.group import Group
from ringleader.groups.work import Work
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.testing.threaded_world import run_threads, run_world

TRANSPORTS = ["memory", "tcp", "shm"]


def numbers(rank: int, step: int, count: int) -> Tensor:
    """Return integers that differ by rank, step and position: sums are exact."""
    return ((torch.arange(count) * 7 + step * 31 + rank * 1009) % 4093).double()


def total(size: int, step: int, count: int) -> Tensor:
    return torch.stack([numbers(r, step, count) for r in range(size)]).sum(0)


@pytest.mark.parametrize(
    ("size", "transport"),
    [
        (2, "tcp"),
        (2, "shm"),
        (3, "memory"),
        pytest.param(4, "tcp", marks=pytest.mark.slow),
        (4, "shm"),
    ],
)
def test_a_thousand_steps_with_random_delays_are_all_right(
    size: int, transport: str
) -> None:
    """A rank that is ahead of the root gets the values of its own step."""
    steps, count = 1000, 40
    expected = [total(size, s, count) for s in range(steps)]

    def train(group: Group) -> None:
        dice = random.Random(group.rank)
        for step in range(steps):
            tensor = numbers(group.rank, step, count)
            if dice.random() < 0.02:
                time.sleep(dice.uniform(0, 0.004))
            group.all_reduce(tensor)
            assert torch.equal(tensor, expected[step]), f"wrong at step {step}"

    run_world(size, train, transport, within_s=300)


def one_step(group: Group, step: int, shared: random.Random) -> None:
    """An operation that all ranks draw from the same dice, checked."""
    rank, size = group.rank, group.size
    count = shared.choice([1, 2, 50, 3000, 200_001])
    root, kind = shared.randrange(size), shared.randrange(5)
    mine = numbers(rank, step, count)
    right = total(size, step, count)
    if kind == 0:
        group.broadcast(mine, root)
        right = numbers(root, step, count)
    elif kind == 1:
        mine = torch.zeros(size * count).double()
        group.all_gather(mine, numbers(rank, step, count))
        right = torch.cat([numbers(r, step, count) for r in range(size)])
    elif kind == 2:
        group.reduce(mine, root)
        right = right if rank == root else numbers(rank, step, count)
    elif kind == 3:
        group.barrier()
        right = mine
    else:
        group.all_reduce(mine)
    assert torch.equal(mine, right), f"kind {kind} at step {step}"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_steps_of_every_kind_with_random_delays_are_all_right(transport: str) -> None:
    """Successive calls never see each other's values."""

    def train(group: Group) -> None:
        dice, shared = random.Random(100 + group.rank), random.Random(7)
        for step in range(150):
            if dice.random() < 0.1:
                time.sleep(dice.uniform(0, 0.003))
            one_step(group, step, shared)

    run_world(3, train, transport, within_s=300)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_successive_broadcasts_bring_successive_values(transport: str) -> None:
    """Nothing of the first broadcast is left for the second."""

    def body(group: Group) -> list[float]:
        seen = []
        for step in range(50):
            tensor = torch.full((1000,), float(step if group.rank == 0 else -1))
            group.broadcast(tensor, src=0)
            assert bool((tensor == tensor[0]).all())
            seen.append(tensor[0].item())
        return seen

    for seen in run_world(3, body, transport):
        assert seen == [float(s) for s in range(50)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("equal", [True, False])
def test_concurrent_buckets_never_mix(transport: str, equal: bool) -> None:
    """Calls of equal sizes must not be swapped, of different sizes not be mixed."""
    size = 3
    counts = [10_000] * 12 if equal else [1, 5000, 3, 100_000, 0, 77, 250_000, 2, 9999]

    def body(group: Group) -> None:
        for round_ in range(3):
            step = 100 * round_
            tensors = [numbers(group.rank, step + i, n) for i, n in enumerate(counts)]
            works = [group.all_reduce(t, async_op=True) for t in tensors]
            for work in reversed(works):
                work.wait()
            for i, tensor in enumerate(tensors):
                assert torch.equal(tensor, total(size, step + i, counts[i])), i

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_operations_of_all_kinds_in_flight_are_waited_for_in_any_order(
    transport: str,
) -> None:
    size = 3

    def body(group: Group) -> None:
        rank, shared = group.rank, random.Random(11)
        checks: list[tuple[Work, Callable[[], bool]]] = []
        for step in range(60):
            count = shared.choice([0, 1, 33, 4000, 120_000])
            mine = numbers(rank, step, count)
            kind = shared.randrange(4)
            if kind == 0:
                right = total(size, step, count)
                work = group.all_reduce(mine, async_op=True)
                checks.append((work, lambda t=mine, r=right: torch.equal(t, r)))  # type: ignore[misc]
            elif kind == 1:
                root = shared.randrange(size)
                right = numbers(root, step, count)
                work = group.broadcast(mine, root, async_op=True)
                checks.append((work, lambda t=mine, r=right: torch.equal(t, r)))  # type: ignore[misc]
            elif kind == 2:
                out = torch.zeros(size * count).double()
                right = torch.cat([numbers(r, step, count) for r in range(size)])
                work = group.all_gather(out, mine, async_op=True)
                checks.append((work, lambda t=out, r=right: torch.equal(t, r)))  # type: ignore[misc]
            else:
                checks.append((group.barrier(async_op=True), lambda: True))
        random.Random(rank).shuffle(checks)
        for work, check in checks:
            work.wait()
            assert work.done()
            assert work.error() is None
            assert check()

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_several_threads_may_wait_for_one_rank_s_operations(transport: str) -> None:
    size = 2

    def body(group: Group) -> None:
        tensors = [numbers(group.rank, s, 500 + s) for s in range(40)]
        works = [group.all_reduce(t, async_op=True) for t in tensors]

        def wait_for(part: int) -> None:
            for work in works[part::4]:
                work.wait()
                work.wait()

        run_threads([lambda p=p: wait_for(p) for p in range(4)])  # type: ignore[misc]
        for step, tensor in enumerate(tensors):
            assert torch.equal(tensor, total(size, step, 500 + step))

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_that_wait_run_after_those_that_do_not(transport: str) -> None:
    """The order is the order of the calls, whoever runs them."""
    size = 3

    def body(group: Group) -> None:
        for step in range(30):
            early = numbers(group.rank, step, 60_000)
            work = group.all_reduce(early, async_op=True)
            late = numbers(group.rank, step, 5)
            group.all_reduce(late)
            assert work.done(), "a later call ended before an earlier one"
            work.wait()
            assert torch.equal(early, total(size, step, 60_000))
            assert torch.equal(late, total(size, step, 5))

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_operation_in_flight_goes_on_while_the_caller_computes(
    transport: str,
) -> None:
    def body(group: Group) -> None:
        tensor = numbers(group.rank, 0, 300_000)
        work = group.all_reduce(tensor, async_op=True)
        until_s = time.monotonic() + 200
        while not work.done():  # nobody waits for it
            assert time.monotonic() < until_s
            time.sleep(0.001)
        assert torch.equal(tensor, total(2, 0, 300_000))

    run_world(2, body, transport)


def test_a_wait_with_a_limit_leaves_the_operation_alone() -> None:
    has_timed_out = threading.Event()

    def body(group: Group) -> None:
        tensor = numbers(group.rank, 0, 10)
        if group.rank == 1:
            assert has_timed_out.wait(60)
        work = group.all_reduce(tensor, async_op=True)
        if group.rank == 0:
            with pytest.raises(TimeoutError, match="still running"):
                work.wait(timeout_s=0.05)
            has_timed_out.set()
        work.wait()
        assert torch.equal(tensor, total(2, 0, 10))

    run_world(2, body, "tcp")


def count_wrong_elements(group: Group, ready: Ready, count: int, steps: int) -> int:
    """Count wrong elements over many large sums of different numbers."""
    wrong = 0
    tensor = torch.empty(count)
    for step in range(steps):
        tensor.fill_(10**group.rank + step)
        group.all_reduce(tensor)
        right = sum(10**r + step for r in range(group.size))
        wrong += int((tensor != right).sum())
    ready()
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "steps"), [("tcp", 8), ("shm", 35)])
def test_every_element_is_right_when_ranks_outnumber_cores_by_far(
    transport: str, steps: int, fork_server: ForkServer
) -> None:
    """Ranks lose the core in every possible place while others reuse the memory."""
    with contextlib.ExitStack() as stack:
        ranks = []
        for size in (2, 2, 2, 2, 3, 4):
            made = spawn_ranks(
                size,
                count_wrong_elements,
                3_000_000,
                steps,
                transport=transport,
                timeout_s=300,
                fork_server=fork_server,
            )
            ranks += stack.enter_context(made)
        assert [rank.result(within_s=400) for rank in ranks] == [0] * len(ranks)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_64_megabytes_are_not_too_much(transport: str) -> None:
    count = 16 << 20

    def body(group: Group) -> None:
        tensor = torch.full((count,), float(group.rank + 1))
        tensor[-1] = 100
        group.all_reduce(tensor)
        assert tensor[0] == 3
        assert tensor[-1] == 200
        assert tensor.sum(dtype=torch.float64) == 3.0 * (count - 1) + 200
        group.broadcast(tensor.fill_(group.rank), src=1)
        assert bool((tensor == 1).all())

    run_world(2, body, transport)


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp"), (5, "memory")])
def test_every_rank_can_be_the_root(size: int, transport: str) -> None:
    def body(group: Group) -> None:
        rank = group.rank
        for root in range(size):
            for count in (3, 50_000):
                mine = numbers(rank, root, count)
                group.broadcast(mine, root)
                assert torch.equal(mine, numbers(root, root, count))

                outs = [torch.zeros(count).double() for _ in range(size)]
                group.gather(
                    outs if rank == root else None, numbers(rank, 1, count), root
                )
                if rank == root:
                    for r, out in enumerate(outs):
                        assert torch.equal(out, numbers(r, 1, count))

                parts = [numbers(r, 2, count) for r in range(size)]
                out = torch.zeros(count).double()
                group.scatter(out, parts if rank == root else None, root)
                assert torch.equal(out, numbers(rank, 2, count))

                mine = numbers(rank, 3, count)
                group.reduce(mine, root)
                right = (
                    total(size, 3, count) if rank == root else numbers(rank, 3, count)
                )
                assert torch.equal(mine, right)

    run_world(size, body, transport)
