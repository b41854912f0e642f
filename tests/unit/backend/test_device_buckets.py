"""DDP's buckets on a GPU, reduced at the end of a backward pass, on a simulated device.

Ranks are threads here, which run the passes of a model that does nothing but fill its
buckets. What stands for the reducer reads them when torch's does: in a callback of the
pass that is queued with the last bucket. tests/torch/cuda_ddp.py has the real one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

from ringleader.backend import (
    device_exchange,
    device_memory,
    device_slots,
    process_group,
    rank_facts,
)
from ringleader.backend.device_buckets import Bucket, BucketWork, DeviceBuckets
from ringleader.backend.device_call import DeviceCall
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.staging import HostStaging
from ringleader.backend.torch_options import reduction
from ringleader.errors import GroupAborted
from ringleader.groups import postponement
from ringleader.groups.group import handle_of
from ringleader.groups.postponed_calls import PostponedCalls
from ringleader.testing.threaded_world import run_threads
from tests.kit.fake_accelerator import PACES, Accelerator
from tests.kit.torch_groups import formed_groups

T = TypeVar("T")
GPU = b"\1" * 16
COUNTS = (20_003, 60_000, 30_001)
"""Elements of the buckets: too many for an exchange, and together more than a slot has
at first.
"""
COUNT = 40_000
WITHIN_S = 120.0


class OnDevice(Tensor):
    """A tensor of the simulated accelerator."""

    is_cpu = property(lambda _: False)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let threads find each other's memory; passes are postponed until they end."""
    numbers, memory = itertools.count(1), dict[int, Tensor]()

    def grant(own: Tensor) -> bytes:
        number = next(numbers)
        memory[number] = own
        return number.to_bytes(device_memory.GRANT_BYTES, "little")

    def open_grant(row: bytes, _: object, num_bytes: int) -> Tensor:
        found = memory.get(int.from_bytes(row, "little"))
        if found is None:
            raise RuntimeError("nothing was granted")
        return found[:num_bytes]

    devices = [torch.device("cpu"), torch.device("cuda")]
    for module in (process_group, rank_facts):
        monkeypatch.setattr(module, "available_devices", lambda: devices)
    monkeypatch.setattr(device_memory, "grant", grant)
    monkeypatch.setattr(device_memory, "open_grant", open_grant)
    monkeypatch.setattr(device_memory, "device_id", lambda _: GPU)
    monkeypatch.setattr(device_memory, "refuse", lambda _: None)
    monkeypatch.setattr(device_memory, "free_bytes", lambda _: 1 << 30)
    monkeypatch.setattr(device_slots, "SLOT_BYTES", 100_000)
    monkeypatch.setattr(device_exchange, "MIN_BYTES", 0)
    monkeypatch.setattr(postponement, "POSTPONED_S", WITHIN_S)
    yield
    memory.clear()


class Rank:
    """A rank that trains: its buckets, and what the reducer has read from them."""

    def __init__(self, group: RingleaderGroup, pace: str) -> None:
        self.group = group
        self.rank, self.size = group.group.rank, group.group.size
        self.device = Accelerator(pace, seed=self.rank)
        group._staging[torch.device("cpu")] = HostStaging(self.device)
        self.buckets = DeviceBuckets(group)
        self.num_met = 0
        """How often it has asked the others."""
        assert group.exchange is not None
        agree = group.exchange.agree

        def counted(call: DeviceCall, own_id: bytes) -> bool:
            self.num_met += 1
            return agree(call, own_id)

        group.exchange.agree = counted  # type: ignore[method-assign]

    def computed(self, values: Tensor) -> Tensor:
        """Return a bucket that a pending kernel of the pass fills."""
        tensor = torch.zeros_like(values)
        self.device.compute(lambda: tensor.copy_(values))
        return tensor.as_subclass(OnDevice)

    def start(self, tensor: Tensor, op: Any = ReduceOp.SUM) -> BucketWork | None:  # noqa: ANN401
        opts = AllreduceOptions()
        opts.reduceOp = op
        return self.buckets.all_reduce(opts, tensor, reduction(op))

    def one_by_one(self, tensor: Tensor) -> None:
        """Reduce a bucket as a rank does that is in no backward pass."""
        work = self.group.allreduce([tensor], AllreduceOptions())
        assert work is not None
        work.wait()

    def read(self, tensor: Tensor) -> Tensor:
        return self.device.read(tensor.as_subclass(Tensor))

    def train(
        self, turn: int, on_the_way: Callable[[int], object] = lambda _: None
    ) -> list[Tensor]:
        """Run a pass; return what the reducer finds at its end.

        ``on_the_way`` is called after each bucket.
        """
        works: list[BucketWork] = []
        found: list[Tensor] = []

        def finish() -> None:
            for work in works:
                (tensor,) = work.get_future().wait()
                found.append(self.read(tensor))

        def fill(number: int) -> None:
            values = numbers(COUNTS[number], self.rank, turn)
            work = self.start(self.computed(values))
            assert work is not None
            works.append(work)
            if number == len(COUNTS) - 1:
                torch.autograd.Variable._execution_engine.queue_callback(finish)
            on_the_way(number)

        backward([partial(fill, n) for n in range(len(COUNTS))])
        return found


def backward(hooks: Sequence[Callable[[], object]]) -> None:
    """Run a backward pass that calls ``hooks`` in this order."""
    with torch.enable_grad():  # in a pass it is off
        result = torch.ones(1, requires_grad=True)
        for hook in reversed(hooks):
            result = result * 2
            result.register_hook(lambda _, hook=hook: hook() and None)  # type: ignore[no-untyped-call]
    result.backward()  # type: ignore[no-untyped-call]


def numbers(count: int, rank: int, turn: int) -> Tensor:
    """Return integers that differ by index, rank and turn; their sums are exact."""
    return ((torch.arange(count) * 7 + turn * 31 + rank * 1009) % 4093).float()


def check(found: list[Tensor], size: int, turn: int) -> None:
    assert len(found) == len(COUNTS)
    for tensor, count in zip(found, COUNTS, strict=True):
        every = torch.stack([numbers(count, rank, turn) for rank in range(size)])
        assert torch.equal(tensor, every.sum(0))


def together(size: int, body: Callable[[Rank], T], pace: str = "late") -> list[T]:
    """Run ``body`` on every rank; check that no memory was used without permission."""

    def live(group: RingleaderGroup) -> T:
        rank = Rank(group, pace)
        result = body(rank)
        assert rank.device.mistakes == []
        return result

    with formed_groups(size, WITHIN_S) as groups:
        return run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("size", [2, 3])
def test_the_ranks_meet_once_in_a_pass(size: int, pace: str) -> None:
    """After the first pass, in which slots become as large as the buckets."""

    def body(rank: Rank) -> None:
        for turn in range(5):
            num_before = rank.num_met
            check(rank.train(turn), size, turn)
            assert turn == 0 or rank.num_met == num_before + 1

    together(size, body, pace)


def test_slots_take_a_part_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then buckets are cut, and the slots are not made again in every pass."""
    free_bytes = itertools.cycle([1 << 30, 200_000 * 2 * 2 * 4])
    monkeypatch.setattr(device_memory, "free_bytes", lambda _: next(free_bytes))

    def body(rank: Rank) -> None:
        for turn in range(4):
            num_before = rank.num_met
            check(rank.train(turn), 2, turn)
            assert turn == 0 or rank.num_met == num_before + 3  # 440 kB

    together(2, body)


def test_slots_that_cannot_grow_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank is refused the memory; all go on with the slots that they have."""
    allocate, sizes = device_slots._allocate, list[int]()

    def refuse_more(group: Any, device: Any, where: Any, slot_bytes: int) -> Any:  # noqa: ANN401
        sizes.append(slot_bytes)
        if slot_bytes > 100_000 and group.rank == 1:
            return torch.empty(0), bytes(device_memory.GRANT_BYTES * 2), "out of memory"
        return allocate(group, device, where, slot_bytes)

    def body(rank: Rank) -> None:
        rank.one_by_one(rank.computed(numbers(COUNT, rank.rank, 0)))
        for turn in range(3):
            num_before = rank.num_met
            check(rank.train(turn), 2, turn)
            assert turn == 0 or rank.num_met == num_before + 5  # 440 kB

    monkeypatch.setattr(device_slots, "_allocate", refuse_more)
    together(2, body)
    assert len(sizes) == 4

    monkeypatch.setattr(device_memory, "free_bytes", lambda _: 0)
    sizes.clear()
    together(2, body)
    assert len(sizes) == 2


def test_short_buckets_join_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a long one they need no question; they never come first."""
    monkeypatch.setattr(device_exchange, "MIN_BYTES", 100_000)
    counts = (9, COUNT, 9)

    def body(rank: Rank) -> None:
        for turn in range(4):
            tensors = [rank.computed(numbers(n, rank.rank, turn)) for n in counts]

            def start(tensors: Sequence[Tensor] = tensors) -> None:
                joined = [rank.start(tensor) is not None for tensor in tensors]
                assert joined == [False, True, True]

            if turn == 2 and rank.rank == 0:
                for tensor in tensors[1:]:
                    rank.one_by_one(tensor)
            else:
                backward([start])
            for tensor in tensors[1:]:
                count = tensor.numel()
                wanted = numbers(count, 0, turn) + numbers(count, 1, turn)
                assert torch.equal(rank.read(tensor), wanted)

    together(2, body)


@pytest.mark.parametrize("pace", PACES)
def test_a_rank_without_data_takes_part_one_by_one(pace: str) -> None:
    def body(rank: Rank) -> None:
        for turn in range(6):
            if turn % 3 == rank.rank:
                tensors = [rank.computed(numbers(n, rank.rank, turn)) for n in COUNTS]
                for tensor in tensors:
                    rank.one_by_one(tensor)
                found = [rank.read(tensor) for tensor in tensors]
            else:
                found = rank.train(turn)
            check(found, 2, turn)

    together(2, body, pace)


def test_operations_on_the_way_are_in_order() -> None:
    """They cut the buckets in two, on all ranks at the same place."""

    def body(rank: Rank) -> None:
        seen: list[Tensor] = []
        works: list[Any] = []

        def at_once(number: int) -> None:
            if number == 1:
                seen.append(torch.full((5,), float(rank.rank)))
                rank.group.group.all_reduce(seen[-1])

        def later(number: int) -> None:
            seen.append(torch.full((5,), float(rank.rank + number)))
            works.append(rank.group.group.all_reduce(seen[-1], async_op=True))

        check(rank.train(0), 3, 0)
        for turn, (on_the_way, num_met) in enumerate(((at_once, 2), (later, 3)), 1):
            num_before = rank.num_met
            check(rank.train(turn, on_the_way), 3, turn)
            assert rank.num_met == num_before + num_met
        for work in works:
            work.wait()
        assert [each[0].item() for each in seen] == [3.0, 3.0, 6.0, 9.0]

    together(3, body)


def test_what_comes_after_a_pass_is_not_postponed() -> None:
    def body(rank: Rank) -> bool:
        check(rank.train(0), 2, 0)
        tensor, ended = torch.ones(COUNT), threading.Event()
        rank.group.group.all_reduce(tensor, async_op=True).when_done(ended.set)
        return ended.wait(WITHIN_S / 2)

    assert together(2, body) == [True, True]


def test_what_is_called_on_the_way_is_not_postponed() -> None:
    """What comes before the buckets runs during the pass, what is behind them at its
    end; nobody waits for them.
    """
    may_begin = threading.Event()

    def body(rank: Rank) -> list[bool]:
        tensors = [torch.full((COUNT,), float(rank.rank)) for _ in range(3)]
        ends = [threading.Event() for _ in tensors]
        have_ended: list[bool] = []

        def call(number: int) -> None:
            work = rank.group.group.all_reduce(tensors[number], async_op=True)
            work.when_done(ends[number].set)

        def begin() -> None:
            """On rank 0 the first one runs and the second is queued."""
            if rank.rank == 1:
                may_begin.wait(WITHIN_S)
            call(0)
            call(1)

        def look(number: int) -> None:
            if number == 0:
                may_begin.set()
                have_ended.extend(end.wait(WITHIN_S / 3) for end in ends[:2])
            if number == len(COUNTS) - 1:
                call(2)
                time.sleep(0.1)  # the background thread sees that it is behind

        backward([begin, lambda: rank.train(0, look)])
        have_ended.append(ends[2].wait(WITHIN_S / 3))
        assert all(bool((each == 1.0).all()) for each in tensors)
        return have_ended

    assert together(2, body) == [[True] * 3] * 2


def test_ranks_count_alike_what_they_reduce_together_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a pass runs what all ranks have issued, by these counts."""
    monkeypatch.setattr(postponement, "POSTPONED_S", 0.01)
    counts = [memoryview(bytearray(8)).cast("Q") for _ in range(2)]

    def body(rank: Rank) -> None:
        runner = handle_of(rank.group.group).runner
        others = [each for r, each in enumerate(counts) if r != rank.rank]
        mine, ended = counts[rank.rank], threading.Event()
        runner.postponed = PostponedCalls(mine, others, runner.postponement)

        def wait(_: int) -> None:
            until = itertools.count()
            while runner._queue and next(until) < 10_000:
                ended.wait(0.001)

        for turn in range(2):
            check(rank.train(turn, wait if rank.rank else lambda _: None), 2, turn)

    together(2, body)
    assert [each[0] for each in counts] == [2 * len(COUNTS)] * 2


@pytest.mark.parametrize("slow", [{0}, {0, 1}])
def test_a_slow_pass_is_reduced_meanwhile(
    monkeypatch: pytest.MonkeyPatch, slow: set[int]
) -> None:
    """By the background thread; other ranks may reduce other buckets together."""
    monkeypatch.setattr(postponement, "POSTPONED_S", 0.01)

    def body(rank: Rank) -> None:
        runner = handle_of(rank.group.group).runner
        ended = threading.Event()

        def wait(number: int) -> None:
            """Go on when what is queued has been run, or begun."""
            if rank.rank not in slow or number == 2:
                return
            until = itertools.count()
            while runner._queue and next(until) < 10_000:
                ended.wait(0.001)

        for turn in range(4):
            check(rank.train(turn, wait), 2, turn)

    together(2, body)


def test_whoever_waits_before_the_end_of_a_pass_gets_the_sum() -> None:
    """Also by a future, which does not run the queue."""
    postponement.POSTPONED_S = 0.05  # the fixture restores it

    def body(rank: Rank) -> None:
        seen: list[Tensor] = []

        def wait(*, by_future: bool) -> None:
            tensor = rank.computed(numbers(COUNT, rank.rank, 0))
            work = rank.start(tensor)
            assert work is not None
            if by_future:
                work.get_future().wait()
            else:
                work.wait()
            seen.append(rank.read(tensor))

        for by_future in (True, False):
            backward([partial(wait, by_future=by_future)])
        wanted = numbers(COUNT, 0, 0) + numbers(COUNT, 1, 0)
        assert all(torch.equal(each, wanted) for each in seen)
        assert len(seen) == 2

    together(2, body)


def test_a_coalescing_block_gets_no_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background thread reduces one while the program coalesces its calls."""
    monkeypatch.setattr(postponement, "POSTPONED_S", 0.01)

    def body(rank: Rank) -> list[int]:
        lengths: list[int] = []

        def coalesce() -> None:
            work = rank.start(rank.computed(numbers(COUNT, rank.rank, 0)))
            assert work is not None
            rank.group._start_coalescing()
            work.get_future().wait()
            lengths.extend(
                each.numel() for each in rank.group._end_coalescing().result()
            )

        backward([coalesce])
        return lengths

    assert together(2, body) == [[0], [0]]


def test_buckets_of_two_devices_are_not_reduced_together() -> None:
    def body(rank: Rank) -> None:
        def start() -> None:
            assert rank.start(rank.computed(numbers(COUNT, rank.rank, 0))) is not None
            batch = rank.buckets._batch
            assert batch is not None
            event, op = rank.device.record_event(), reduction(ReduceOp.SUM)
            elsewhere = torch.empty(COUNT, device="meta")
            assert not batch.add(Bucket(elsewhere, event), op)
            assert not batch.add(Bucket(torch.empty(9), event), reduction(ReduceOp.MAX))

        backward([start])

    together(2, body)


def test_passes_inside_of_passes() -> None:
    """The inner one ends first, and reduces what the outer one has begun."""

    def body(rank: Rank) -> None:
        for turn in range(3):
            found: list[Tensor] = []

            def inner(found: list[Tensor] = found, turn: int = turn) -> None:
                found += rank.train(turn)

            first: list[Tensor] = []

            def begin(first: list[Tensor] = first, turn: int = turn) -> None:
                first.append(rank.computed(numbers(COUNT, rank.rank, turn)))
                assert rank.start(first[0]) is not None

            backward([begin, inner])
            check(found, 2, turn)
            wanted = numbers(COUNT, 0, turn) + numbers(COUNT, 1, turn)
            assert torch.equal(rank.read(first[0]), wanted)

    together(2, body)


def test_a_pass_inside_ends_what_another_has_begun() -> None:
    """The last bucket is none that is reduced together: the reducer waits there."""

    def body(rank: Rank) -> None:
        works: list[BucketWork] = []

        def begin() -> None:
            work = rank.start(rank.computed(numbers(COUNT, rank.rank, 0)))
            assert work is not None
            works.append(work)

        def end() -> None:
            rank.buckets.is_on = False
            assert rank.start(rank.computed(numbers(COUNT, rank.rank, 1))) is None
            rank.buckets.is_on = True
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: works[0].get_future().wait() and None)

        started_s = time.monotonic()
        backward([begin, lambda: backward([end])])
        assert time.monotonic() - started_s < WITHIN_S / 2

    together(2, body)


def test_an_error_ends_the_pass_and_is_in_the_futures() -> None:
    def body(rank: Rank) -> None:
        check(rank.train(0), 2, 0)
        works: list[BucketWork] = []

        def start() -> None:
            work = rank.start(rank.computed(numbers(COUNT, rank.rank, 0)))
            assert work is not None
            works.append(work)
            rank.group.abort()

        with pytest.raises(GroupAborted):
            backward([start])
        with pytest.raises(RuntimeError, match="abort"):
            works[0].get_future().wait()

    together(2, body)


def test_what_is_reduced_at_once() -> None:
    """Outside of a pass, with a limit of its own, of integers that nobody adds up
    there, synchronously, and if the model does not want it.
    """

    def body(rank: Rank) -> None:
        tensor = rank.computed(numbers(COUNT, rank.rank, 0))
        assert rank.start(tensor) is None
        found: list[object] = []

        def start() -> None:
            limited, waiting, plain = (AllreduceOptions() for _ in range(3))
            limited.timeout = timedelta(seconds=30)
            waiting.asyncOp = False
            op, start = reduction(ReduceOp.SUM), rank.buckets.all_reduce
            found.extend(start(opts, tensor, op) for opts in (limited, waiting))
            rank.buckets.is_on = False
            found.append(start(plain, tensor, op))
            rank.buckets.is_on = True
            sparse: Any = tensor.as_subclass(Tensor).to_sparse()
            found.append(start(plain, sparse, op))

        backward([start])
        assert found == [None] * 4

    together(2, body)
