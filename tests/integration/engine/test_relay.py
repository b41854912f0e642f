"""Relays in shared memory: places that are used again and again, views that are kept.

Parts are one page here, so that tensors of some KiB walk over many pieces.
"""

from __future__ import annotations

import random
import time

import pytest
import torch
from torch import Tensor

from ringleader.engine.shared_memory import relay_plan
from ringleader.engine.shared_memory.shared_memory_engine import SharedMemoryEngine
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_world
from ringleader.transport import shm_segment

BASE = 20_000
"""Elements of float64 beyond what is reduced in one exchange."""


def shared_engine(group: Group) -> SharedMemoryEngine:
    engine = handle_of(group).executor.shared
    assert engine is not None
    return engine


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_segment, "RELAY_BYTES", 1)
    assert shm_segment.Geometry(2).part_bytes == shm_segment.PAGE


def numbers(rank: int, step: int, count: int) -> Tensor:
    """Return integers that differ by rank, step and position: sums are exact."""
    return ((torch.arange(count) * 7 + step * 31 + rank * 1009) % 4093).double()


def total(size: int, step: int, count: int) -> Tensor:
    return torch.stack([numbers(r, step, count) for r in range(size)]).sum(0)


def scattered(group: Group, step: int, count: int, dice: random.Random) -> None:
    """A reduce_scatter of parts that need not be equal, checked."""
    lengths = [count // 2 + dice.randrange(3) * 700 for _ in range(group.size)]
    sources = list(numbers(group.rank, step, sum(lengths)).split_with_sizes(lengths))
    out = torch.full((lengths[group.rank],), -1.0).double()
    group.reduce_scatter(out, sources)
    right = total(group.size, step, sum(lengths)).split_with_sizes(lengths)[group.rank]
    assert torch.equal(out, right), f"wrong at step {step}"


def reduced(group: Group, step: int, count: int, *, in_place: bool) -> None:
    """An all_reduce, checked; its input is written only if it is the result."""
    source = numbers(group.rank, step, count)
    result = source if in_place else torch.full_like(source, -1)
    group.all_reduce(source, out=None if in_place else result)
    assert torch.equal(result, total(group.size, step, count)), f"wrong at step {step}"
    if not in_place:
        kept = numbers(group.rank, step, count)
        assert torch.equal(source, kept), f"input written at step {step}"


def random_calls(group: Group, num_steps: int) -> None:
    """Calls that all ranks draw from the same dice, with delays that each draws."""
    shared, own = random.Random(group.size), random.Random(group.rank)
    for step in range(num_steps):
        count = BASE // 2 + shared.randrange(20) * 500 + shared.randrange(3)
        if own.random() < 0.1:
            time.sleep(own.uniform(0, 0.004))
        kind = shared.randrange(3)
        if kind == 2:
            scattered(group, step, count, shared)
        else:
            reduced(group, step, count, in_place=kind == 0)


@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_calls_of_any_length_follow_one_another(size: int) -> None:
    """No rank writes where another still reads, however they are out of step."""
    run_world(size, lambda group: random_calls(group, 150), "shm")


def test_the_doorbell_is_signal_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no semaphores that processes can share, as on a Mac."""
    monkeypatch.setattr(shm_segment, "_init_semaphores", lambda *_: False)

    def check(group: Group) -> None:
        shm_peers = shared_engine(group).arena._shm_peers
        assert not any(n.has_semaphores for n in shm_peers.values())
        random_calls(group, 40)

    run_world(3, check, "shm")


def test_memory_that_comes_back_as_another_tensor_is_seen_as_that() -> None:
    """Kept views are found by place, length and dtype: nothing less would do."""

    def train(group: Group) -> None:
        memory = torch.zeros(4 * BASE).double()
        for step in range(60):
            count = BASE + step % 5
            tensor = memory[:count]
            if step % 3 == 1:
                tensor = memory.view(torch.float32)[:count]
            elif step % 3 == 2:
                tensor = memory.view(torch.int64)[1 : count + 1]
            tensor.copy_(numbers(group.rank, step, count))
            around = memory.view(torch.int64)[count + 1 :].clone()
            group.all_reduce(tensor)
            right = total(2, step, count).to(tensor.dtype)
            assert torch.equal(tensor, right), f"wrong at step {step}"
            beyond = memory.view(torch.int64)[count + 1 :]
            assert torch.equal(beyond, around), f"written beyond it at step {step}"

    run_world(2, train, "shm")


def test_only_so_many_views_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_plan, "MAX_VIEWS", 1000)

    def train(group: Group) -> None:
        walks = shared_engine(group).relay._plans.kept
        for step in range(20):
            count = BASE * (1 + step % 3 * 3)  # the longest is laid as it is walked
            tensor = numbers(group.rank, step, count)
            group.all_reduce(tensor)
            assert torch.equal(tensor, total(2, step, count))
            assert sum(8 * len(turns) for turns in walks.values()) <= 1000
        assert walks

    run_world(2, train, "shm")


def test_what_fits_no_slot_of_so_many_ranks_is_not_put_into_one() -> None:
    """Slots get smaller with every rank of a host: 61,440 bytes with 17 of them."""
    size, counts = 17, [7_000, 7_680, 7_681, 8_192, 8_193]

    def train(group: Group) -> None:
        for step, count in enumerate(counts * 2):
            tensor = numbers(group.rank, step, count)
            group.all_reduce(tensor)
            assert torch.equal(tensor, total(size, step, count)), f"{count} at {step}"

    run_world(size, train, "shm")
