"""Ranks that call different things: all learn of it at once, nobody gets numbers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from ringleader.errors import CallMismatch
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_threads, world

TRANSPORTS = ["memory", "tcp", "shm"]
WORLDS = [(2, "tcp"), (2, "shm"), (3, "memory"), (4, "tcp"), (4, "shm")]
"""Two ranks have no third to learn from; with four, two of them agree."""
WITHIN_S = 30.0
LIMIT_S = 90.0
"""Timeout of every call; a mismatch must be found long before."""

Step = Callable[[Group], object]


def ones(count: int = 1000, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(count, dtype=dtype)


def all_reduce(
    count: int = 1000, dtype: torch.dtype = torch.float32, op: str = "sum"
) -> Step:
    return lambda g: g.all_reduce(ones(count, dtype), op, timeout_s=LIMIT_S)


def plain_all_reduce(count: int) -> Step:
    """Without options: the second time, the prepared form runs."""

    def step(group: Group) -> None:
        group.all_reduce(ones(count))

    return step


def plain_all_gather(count: int) -> Step:
    return lambda g: g.all_gather(ones(count * g.size), ones(count))


def plain_reduce_scatter(count: int) -> Step:
    return lambda g: g.reduce_scatter(ones(count), ones(count * g.size))


def broadcast(root: int, count: int = 1000) -> Step:
    return lambda g: g.broadcast(ones(count), root, timeout_s=LIMIT_S)


def all_gather(count: int = 1000) -> Step:
    return lambda g: g.all_gather(ones(count * g.size), ones(count), timeout_s=LIMIT_S)


def all_to_all(count: int) -> Step:
    return lambda g: g.all_to_all(
        ones(count * g.size), ones(count * g.size), timeout_s=LIMIT_S
    )


def barrier(group: Group) -> None:
    group.barrier(timeout_s=LIMIT_S)


PAIRS: dict[str, tuple[Step, Step, tuple[str, str]]] = {
    # what differs: (call of most, call of one, words of both that must be in the text)
    "operation": (all_reduce(), all_gather(250), ("all_reduce(", "all_gather(")),
    "barrier": (barrier, all_reduce(3), ("barrier(", "all_reduce(3 x")),
    "dtype": (all_reduce(), all_reduce(dtype=torch.float64), ("float32", "float64")),
    "dtype of equal size": (
        all_reduce(),
        all_reduce(dtype=torch.int32),
        ("float32", "int32"),
    ),
    "small count": (all_reduce(10), all_reduce(11), ("10 x", "11 x")),
    "prepared count": (plain_all_reduce(10), plain_all_reduce(11), ("10 x", "11 x")),
    "prepared operation": (
        plain_all_gather(10),
        plain_reduce_scatter(10),
        ("all_gather(", "reduce_scatter("),
    ),
    "large count": (all_reduce(300_000), all_reduce(300_001), ("300000 x", "300001 x")),
    "small and large": (all_reduce(10), all_reduce(900_000), ("10 x", "900000 x")),
    "reduction": (all_reduce(), all_reduce(op="max"), (", sum", ", max")),
    "part": (all_to_all(100), all_to_all(101), ("100 x", "101 x")),
}


def outcomes(groups: list[Group], steps: Sequence[Step]) -> list[tuple[object, float]]:
    """(error or None, seconds it took) of every rank."""

    def run(group: Group, step: Step) -> tuple[object, float]:
        started_s = time.monotonic()
        try:
            step(group)
        except Exception as exc:  # noqa: BLE001 - the test looks at it
            return exc, time.monotonic() - started_s
        return None, time.monotonic() - started_s

    bodies = [lambda g=g, s=s: run(g, s) for g, s in zip(groups, steps, strict=True)]
    return run_threads(bodies, within_s=2 * LIMIT_S)


def check_all_raised(
    results: list[tuple[object, float]], words: tuple[str, str]
) -> None:
    for rank, (error, took_s) in enumerate(results):
        assert isinstance(error, CallMismatch), f"rank {rank}: {error!r}"
        assert took_s < WITHIN_S, f"rank {rank} took {took_s:.2f} s"
        for word in words:
            assert word in str(error), f"rank {rank}: {word!r} is not in {error}"


@pytest.mark.parametrize(("size", "transport"), WORLDS)
@pytest.mark.parametrize("difference", PAIRS)
def test_different_calls_raise_on_all_ranks_long_before_the_deadline_naming_both(
    difference: str, size: int, transport: str
) -> None:
    """Count, dtype and reduction are sent with the data and compared."""
    most, one, words = PAIRS[difference]
    with world(size, transport) as groups:
        run_threads([lambda g=g: g.barrier() for g in groups])  # type: ignore[misc]
        run_threads([lambda g=g: most(g) for g in groups])  # type: ignore[misc]
        steps = [most] * size
        steps[size // 2] = one
        check_all_raised(outcomes(groups, steps), words)
        # It is the end of the group, for every later call as well.
        for error, took_s in outcomes(groups, [barrier] * size):
            assert isinstance(error, CallMismatch)
            assert took_s < WITHIN_S, "at once, but for a busy machine"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3])
def test_two_calls_in_another_order_raise_on_all_ranks(
    size: int, transport: str
) -> None:
    def forward(group: Group) -> None:
        all_reduce(100)(group)
        all_reduce(200)(group)

    def backward(group: Group) -> None:
        all_reduce(200)(group)
        all_reduce(100)(group)

    with world(size, transport) as groups:
        results = outcomes(groups, [backward] + [forward] * (size - 1))
        check_all_raised(results, ("100 x", "200 x"))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_dict_of_tensors_in_another_order_is_never_a_wrong_number(
    transport: str,
) -> None:
    """A dict may be iterated in another order on every rank."""
    size = 3
    shapes = {f"layer{i}": 10 + 7 * i for i in range(12)}

    def reduce_all(group: Group) -> None:
        names = list(shapes)
        random.Random(group.rank).shuffle(names)
        works = [
            group.all_reduce(ones(shapes[n]), timeout_s=LIMIT_S, async_op=True)
            for n in names
        ]
        for work in works:
            work.wait()

    with world(size, transport) as groups:
        for error, took_s in outcomes(groups, [reduce_all] * size):
            assert isinstance(error, CallMismatch)
            assert took_s < WITHIN_S


@pytest.mark.parametrize("count", [10, 500_000])
@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_two_ranks_that_both_broadcast_are_found_in_the_next_calls(
    transport: str, size: int, count: int
) -> None:
    """A root only sends: it can notice in its next call at the earliest."""

    def step(group: Group) -> None:
        broadcast(group.rank % 2, count)(group)
        barrier(group)
        barrier(group)

    with world(size, transport) as groups:
        check_all_raised(outcomes(groups, [step] * size), ("root 0", "root 1"))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_broadcasts_from_two_roots_that_both_wait_are_found(transport: str) -> None:
    """Each rank expects the other to send; nobody sends anything."""
    with world(2, transport) as groups:
        results = outcomes(groups, [broadcast(1), broadcast(0)])
        check_all_raised(results, ("root 0", "root 1"))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_uneven_all_to_all_that_does_not_add_up_is_found(transport: str) -> None:
    """Rank 0 sends rank 1 more rows than rank 1 wants."""

    def step(group: Group) -> None:
        splits = [2, 3] if group.rank == 0 else [2, 2]
        theirs = [2, 2]
        rows, wanted = sum(splits), sum(theirs)
        group.all_to_all(
            ones(wanted * 5).view(wanted, 5),
            ones(rows * 5).view(rows, 5),
            in_splits=splits,
            out_splits=theirs,
            timeout_s=LIMIT_S,
        )
        barrier(group)  # rank 0 got what it wanted and notices here
        barrier(group)

    with world(2, transport) as groups:
        check_all_raised(outcomes(groups, [step, step]), ("15 x", "10 x"))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_contributes_twice_is_never_counted_twice(transport: str) -> None:
    """A second call of one rank is the next operation, not that of another rank."""
    size = 3

    def step(group: Group) -> list[float]:
        mine = torch.full((5,), float(10**group.rank))
        again = mine.clone()
        works = [group.all_reduce(mine, async_op=True)]
        if group.rank == 1:  # hurries ahead
            works.append(group.all_reduce(again, async_op=True))
        works[0].wait()
        first = mine[0].item()
        if group.rank != 1:
            works.append(group.all_reduce(again, async_op=True))
        works[1].wait()
        return [first, again[0].item()]

    with world(size, transport) as groups:
        results = run_threads([lambda g=g: step(g) for g in groups])  # type: ignore[misc]
        assert results == [[111.0, 111.0]] * size
