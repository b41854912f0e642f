"""Relays with a simulated accelerator (tests/kit/fake_accelerator.py).

Its copies happen only when somebody waits for them, so a place that is read, told of or
filled again too soon holds what was there before. Parts are one page here: tensors of
some KiB walk over many pieces.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from ringleader.backend.staging import HostStaging
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, GroupAborted
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_world
from ringleader.transport import shm_segment
from tests.kit.fake_accelerator import PACES, Accelerator

T = TypeVar("T")

COUNT = 20_003
"""Float32 elements: too many for an exchange, and the last piece is short."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_segment, "RELAY_BYTES", 1)
    monkeypatch.setattr(shm_segment, "DEVICE_RELAY_BYTES", 1)
    assert shm_segment.Geometry(2).device_part_bytes == shm_segment.PAGE


class Rank:
    """A rank with tensors on a simulated accelerator."""

    def __init__(self, group: Group, pace: str) -> None:
        self.group = group
        self.device = Accelerator(pace, seed=group.rank)
        self.stage = HostStaging(self.device)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Callable[[], None]:
        """Start an all_reduce; return a function that waits as torch's users do."""
        relay = handle_of(self.group).relay(tensor.nbytes)
        assert relay is not None
        work, deliver = self.stage.all_reduce(
            self.group, relay, tensor, op, async_op=True
        )

        def wait() -> None:
            work.wait(120)
            deliver()

        return wait

    def computed(self, values: Tensor, home: Tensor | None = None) -> Tensor:
        """Return a tensor (or ``home``) that a pending kernel of the user will fill."""
        tensor = torch.zeros_like(values) if home is None else home
        self.device.compute(lambda: tensor.copy_(values))
        return tensor


def carried(size: int, body: Callable[[Rank], T], pace: str = "late") -> list[T]:
    """Run ``body`` on every rank; check that no memory was used without permission."""

    def live(group: Group) -> T:
        handle_of(group).expect_accelerators()
        rank = Rank(group, pace)
        result = body(rank)
        rank.stage.close()
        assert rank.device.mistakes == []
        return result

    return run_world(size, live, transport="shm")


def numbers(rank: int, turn: int = 0, count: int = COUNT) -> Tensor:
    """Return integers that differ by index, rank and turn; their sums are exact."""
    return ((torch.arange(count) * 7 + turn * 31 + rank * 1009) % 4093).float()


def total(size: int, turn: int = 0, count: int = COUNT) -> Tensor:
    return torch.stack([numbers(r, turn, count) for r in range(size)]).sum(0)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize(
    ("size", "count"), [(2, COUNT), (3, COUNT), (3, 24 * 1024), (4, 24 * 1024)]
)
def test_the_device_carries_every_part(size: int, count: int, pace: str) -> None:
    def body(rank: Rank) -> Tensor:
        tensor = rank.computed(numbers(rank.group.rank, count=count))
        rank.all_reduce(tensor)()
        return rank.device.read(tensor)

    for seen in carried(size, body, pace):
        assert torch.equal(seen, total(size, count=count))


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("size", [2, 3])
def test_calls_in_a_row_use_the_places_one_after_the_other(
    size: int, pace: str
) -> None:
    """All are started before any is waited for."""
    num_turns = 6

    def body(rank: Rank) -> list[Tensor]:
        turns = range(num_turns)
        counts = [COUNT + 500 * turn for turn in turns]
        tensors = [rank.computed(numbers(rank.group.rank, t, counts[t])) for t in turns]
        waits = [rank.all_reduce(tensor) for tensor in tensors]
        for wait in reversed(waits):
            wait()
        return [rank.device.read(tensor) for tensor in tensors]

    for seen in carried(size, body, pace):
        for turn, got in enumerate(seen):
            assert torch.equal(got, total(size, turn, COUNT + 500 * turn))


def test_parts_become_larger_when_accelerators_are_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for tensors that were reduced before, on the device or the host."""
    monkeypatch.setattr(shm_segment, "DEVICE_RELAY_BYTES", 6 * 3 * shm_segment.PAGE)

    def live(group: Group) -> list[Tensor]:
        rank, seen, tensor = Rank(group, "late"), [], torch.empty(COUNT)
        sizes = []
        for turn in range(4):
            tensor.copy_(numbers(group.rank, turn))
            group.all_reduce(tensor)
            seen.append(tensor.clone())
            relay = handle_of(group).relay(tensor.nbytes)
            assert relay is not None
            sizes.append(relay.part_bytes)
            if turn == 1:
                handle_of(group).expect_accelerators()
        assert sizes == [shm_segment.PAGE] * 2 + [3 * shm_segment.PAGE] * 2
        tensor = rank.computed(numbers(group.rank, 4))
        rank.all_reduce(tensor)()
        return [*seen, rank.device.read(tensor)]

    for seen in run_world(2, live, transport="shm"):
        for turn, got in enumerate(seen):
            assert torch.equal(got, total(2, turn))


@pytest.mark.parametrize("pace", PACES)
def test_a_call_begins_where_the_one_before_has_ended(pace: str) -> None:
    """Each reads the result of the previous one, and only the last is waited for."""

    def body(rank: Rank) -> Tensor:
        tensor = rank.computed(numbers(rank.group.rank))
        waits = [rank.all_reduce(tensor) for _ in range(3)]
        waits[-1]()
        return rank.device.read(tensor)

    for seen in carried(2, body, pace):
        assert torch.equal(seen, total(2) * 4)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("on_cpu", [{0}, {1}, {0, 2}])
def test_ranks_with_and_without_a_device_are_in_one_relay(
    on_cpu: set[int], pace: str
) -> None:
    def body(rank: Rank) -> list[Tensor]:
        seen = []
        for turn in range(4):
            values = numbers(rank.group.rank, turn)
            if rank.group.rank in on_cpu:
                rank.group.all_reduce(values)
                seen.append(values)
            else:
                tensor = rank.computed(values)
                rank.all_reduce(tensor)()
                seen.append(rank.device.read(tensor))
        return seen

    for seen in carried(3, body, pace):
        for turn, got in enumerate(seen):
            assert torch.equal(got, total(3, turn))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.complex64],
)
def test_every_kind_of_number_is_added_as_on_the_cpu(dtype: torch.dtype) -> None:
    count = 40_001

    def values(rank: int) -> Tensor:
        return (numbers(rank, count=count) / 7).to(dtype)

    def body(rank: Rank) -> tuple[Tensor, Tensor]:
        tensor = rank.computed(values(rank.group.rank))
        rank.all_reduce(tensor)()
        on_cpu = values(rank.group.rank)
        rank.group.all_reduce(on_cpu)
        return rank.device.read(tensor), on_cpu

    exact = torch.stack([values(r).to(torch.complex128) for r in range(3)]).sum(0)
    eps = 0.0 if dtype is torch.int64 else torch.finfo(dtype).eps
    for seen, on_cpu in carried(3, body):
        assert torch.equal(seen, on_cpu)
        error = (seen.to(torch.complex128) - exact).abs().max() / exact.abs().max()
        assert error <= 3 * eps


@pytest.mark.parametrize("op", ["mean", "max", "product"])
def test_other_reductions(op: str) -> None:
    def body(rank: Rank) -> Tensor:
        tensor = rank.computed(numbers(rank.group.rank).double())
        rank.all_reduce(tensor, op)()
        return rank.device.read(tensor)

    given = torch.stack([numbers(r).double() for r in range(2)])
    right = {"mean": given.mean(0), "max": given.amax(0), "product": given.prod(0)}
    for seen in carried(2, body):
        assert torch.equal(seen, right[op])


def test_a_mean_of_integers_is_truncated() -> None:
    def body(rank: Rank) -> Tensor:
        tensor = rank.computed(-numbers(rank.group.rank).long())
        rank.all_reduce(tensor, "mean")()
        return rank.device.read(tensor)

    total = sum((-numbers(r).long() for r in range(2)), torch.tensor(0))
    for seen in carried(2, body):
        assert torch.equal(seen, torch.div(total, 2, rounding_mode="trunc"))


@pytest.mark.parametrize("pace", PACES)
def test_a_relay_comes_after_what_was_staged_before_it(pace: str) -> None:
    """A broadcast of the same tensor that was not waited for."""

    def body(rank: Rank) -> Tensor:
        tensor = rank.computed(numbers(rank.group.rank))
        ins, outs = ([tensor], []) if rank.group.rank == 1 else ([], [tensor])
        rank.stage.run(
            rank.group,
            ins,
            outs,
            lambda i, o: rank.group.broadcast((i or o)[0], 1),
            1,
            async_op=True,
        )
        rank.all_reduce(tensor)()
        return rank.device.read(tensor)

    for seen in carried(2, body, pace):
        assert torch.equal(seen, numbers(1) * 2)


def test_a_conjugate_is_one() -> None:
    def values(rank: int) -> Tensor:
        return torch.complex(numbers(rank), numbers(rank, 1))

    def body(rank: Rank) -> tuple[Tensor, Tensor]:
        complex_, real = values(rank.group.rank).conj(), values(rank.group.rank)
        negative = rank.computed(real.conj()).imag.view(-1)
        rank.device.main.mark().synchronize()
        assert complex_.is_conj()
        tensor = complex_
        rank.all_reduce(tensor)()
        rank.all_reduce(negative)()
        return rank.device.read(tensor.resolve_conj()), rank.device.read(negative)

    right = values(0) + values(1)
    for seen, negative in carried(2, body):
        assert torch.equal(seen, right.conj().resolve_conj())
        assert torch.equal(negative, -right.imag)


def test_a_mistake_of_the_caller_does_not_end_the_group() -> None:
    def body(rank: Rank) -> Tensor:
        with pytest.raises(ConfigError, match="expand"):
            rank.all_reduce(torch.ones(1).expand(COUNT))
        with pytest.raises(ConfigError, match="expand"):
            rank.stage.run(
                rank.group, [], [torch.ones(1).expand(9)], lambda _, __: None, 1
            )
        tensor = rank.computed(numbers(rank.group.rank))
        rank.all_reduce(tensor)()
        return rank.device.read(tensor)

    for seen in carried(2, body):
        assert torch.equal(seen, total(2))


def test_what_is_too_small_for_a_relay_is_refused() -> None:
    """Other ranks would use an exchange for it."""

    def body(rank: Rank) -> None:
        relay = handle_of(rank.group).relay(1 << 20)
        assert handle_of(rank.group).relay(64) is None
        assert relay is not None
        rank.stage.all_reduce(rank.group, relay, torch.ones(16), "sum")

    with pytest.raises(ConfigError, match="64 bytes are not reduced by a relay"):
        carried(2, body)


def test_nothing_is_final_that_has_not_been_copied_back() -> None:
    """A tensor that is not contiguous is reduced in a copy, others in place."""
    has_begun = threading.Event()

    def body(rank: Rank) -> None:
        whole = torch.full((COUNT, 2), -77.0)
        if rank.group.rank == 1:
            assert has_begun.wait(120)
            rank.group.abort("enough")
            return
        wait = rank.all_reduce(rank.computed(numbers(0), whole[:, 0]))
        while not rank.device.num_copies:
            time.sleep(0.001)
        has_begun.set()
        with pytest.raises(GroupAborted):
            wait()
        assert rank.group.progress().complete == ()

    carried(2, body)


def test_an_inference_tensor_with_gaps_is_written_by_another_thread() -> None:
    def body(rank: Rank) -> Tensor:
        with torch.inference_mode():
            tensor = torch.stack([numbers(rank.group.rank)] * 2, 1)[:, 0]
        rank.all_reduce(tensor)()
        with torch.inference_mode():
            return tensor.clone()

    for seen in carried(2, body):
        assert torch.equal(seen, total(2))


@pytest.mark.parametrize("pace", PACES)
def test_a_tensor_with_gaps_gets_its_result_and_its_gaps_stay(pace: str) -> None:
    def body(rank: Rank) -> Tensor:
        whole = torch.full((COUNT, 2), -77.0)
        tensor = rank.computed(numbers(rank.group.rank), whole[:, 0])
        rank.all_reduce(tensor)()
        return rank.device.read(whole)

    for seen in carried(2, body, pace):
        assert torch.equal(seen[:, 0], total(2))
        assert torch.equal(seen[:, 1], torch.full((COUNT,), -77.0))


def test_nothing_is_copied_any_more_after_a_failure() -> None:
    """The memory of the group may be unmapped by then."""
    has_begun = threading.Event()

    def body(rank: Rank) -> int:
        if rank.group.rank == 1:
            assert has_begun.wait(120)
            rank.group.abort("enough")
            return 0
        wait = rank.all_reduce(rank.computed(numbers(0)))
        while not rank.device.num_copies:  # until the first turn, then for rank 1
            time.sleep(0.001)
        has_begun.set()
        with pytest.raises(GroupAborted, match="enough"):
            wait()
        copies = rank.device.num_copies
        rank.device.out.mark().synchronize()
        return rank.device.num_copies - copies

    assert carried(2, body) == [0, 0]


def test_what_a_closed_stage_admitted_is_given_back() -> None:
    def body(rank: Rank) -> tuple[int, int]:
        rank.all_reduce(rank.computed(numbers(rank.group.rank)))()
        admitted = rank.device.host_rooms()
        rank.stage.close()
        rank.stage.close()
        return admitted, rank.device.host_rooms()

    assert carried(2, body) == [(3, 1)] * 2, "a room of its own, and two segments"


def test_so_is_what_a_forgotten_stage_admitted() -> None:
    def body(rank: Rank) -> int:
        rank.all_reduce(rank.computed(numbers(rank.group.rank)))()
        rank.stage = HostStaging(rank.device)
        deadline = Deadline.after(60)  # the engine's thread may still be letting go
        while rank.device.host_rooms() > 1 and not deadline.is_over():
            gc.collect()
            time.sleep(0.01)
        return rank.device.host_rooms()

    assert carried(2, body) == [1, 1]
