"""Short all_reduces that run again, with a simulated accelerator.

Its copies happen only when somebody waits for them (tests/kit/fake_accelerator.py). The
tensors are ordinary ones that say of themselves that they are not on the CPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp
from torch.multiprocessing.reductions import StorageWeakRef

from ringleader.backend import process_group, rank_facts, short_device_calls
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.staging import HostStaging
from ringleader.engine.call import Call
from ringleader.engine.observer import Observer, Observers
from ringleader.errors import CallMismatch, DeadlineExceeded, GroupAborted
from ringleader.groups.group import handle_of
from ringleader.testing.threaded_world import run_threads
from ringleader.transport import shm_segment
from tests.kit.fake_accelerator import PACES, Accelerator
from tests.kit.torch_groups import formed_groups

T = TypeVar("T")

COUNT = 20_003
"""Float32 elements: too many for an exchange."""


class OnDevice(Tensor):
    """A tensor of the simulated accelerator."""

    is_cpu = property(lambda _: False)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


@pytest.fixture(autouse=True, params=["one piece", "many pieces"])
def a_machine_with_a_gpu(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if request.param == "many pieces":
        monkeypatch.setattr(shm_segment, "RELAY_BYTES", 1)
        monkeypatch.setattr(shm_segment, "DEVICE_RELAY_BYTES", 1)
    devices = [torch.device("cpu"), torch.device("cuda")]
    for module in (process_group, rank_facts):
        monkeypatch.setattr(module, "available_devices", lambda: devices)
    monkeypatch.setattr(short_device_calls, "PLAIN_TENSORS", {OnDevice})


class Rank:
    """A process group whose tensors are on a simulated accelerator."""

    def __init__(self, torch_group: RingleaderGroup, pace: str) -> None:
        self.torch_group = torch_group
        self.rank = torch_group.group.rank
        self.device = Accelerator(pace, seed=self.rank)
        self.stage = HostStaging(self.device)
        torch_group._staging[torch.device("cpu")] = self.stage

    def computed(self, values: Tensor) -> Tensor:
        """Return a tensor that a pending kernel of the user will fill."""
        tensor = torch.zeros_like(values)
        self.device.compute(lambda: tensor.copy_(values))
        return tensor.as_subclass(OnDevice)

    def all_reduce(self, tensor: Tensor, **fields: object) -> bool:
        """Reduce as torch's users do; return whether it ran as an earlier one."""
        before = self.torch_group._repeated.count
        work = self.torch_group.allreduce([tensor], options(**fields))
        if work is not None:
            work.wait()
        return self.torch_group._repeated.count > before

    def read(self, tensor: Tensor) -> Tensor:
        """Return what the user's program sees from now on."""
        return self.device.read(tensor.as_subclass(Tensor))


def options(**fields: object) -> AllreduceOptions:
    """Return options as torch's functions fill them in: calls are synchronous."""
    made = AllreduceOptions()
    for name, value in ({"asyncOp": False} | fields).items():
        setattr(made, name, value)
    return made


def together(
    size: int, body: Callable[[Rank], T], pace: str = "late", limit_s: float = 90
) -> list[T]:
    """Run ``body`` on every rank; check that no memory was used without permission."""

    def live(torch_group: RingleaderGroup) -> T:
        rank = Rank(torch_group, pace)
        result = body(rank)
        assert rank.device.mistakes == []
        return result

    with formed_groups(size, limit_s) as groups:
        return run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]


def numbers(rank: int, turn: int = 0, count: int = COUNT) -> Tensor:
    """Return integers that differ by index, rank and turn; their sums are exact."""
    return ((torch.arange(count) * 7 + turn * 31 + rank * 1009) % 4093).float()


def total(size: int, turn: int = 0, count: int = COUNT) -> Tensor:
    return torch.stack([numbers(r, turn, count) for r in range(size)]).sum(0)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("size", [2, 3])
def test_all_calls_but_the_first_run_again(size: int, pace: str) -> None:
    """Each on another tensor, whose values are still being computed."""

    def body(rank: Rank) -> list[tuple[bool, Tensor]]:
        seen = []
        for turn in range(6):
            tensor = rank.computed(numbers(rank.rank, turn))
            again = rank.all_reduce(tensor)
            seen.append((again, rank.read(tensor)))
        return seen

    for seen in together(size, body, pace):
        assert [again for again, _ in seen] == [False] + [True] * 5
        for turn, (_, got) in enumerate(seen):
            assert torch.equal(got, total(size, turn))


def broadcast(rank: Rank, tensor: Tensor) -> None:
    """Start a staged operation that nobody waits for."""
    group, plain = rank.torch_group.group, tensor.as_subclass(Tensor)
    ins, outs = ([plain], []) if rank.rank == 1 else ([], [plain])
    rank.stage.run(
        group, ins, outs, lambda i, o: group.broadcast((i or o)[0], 1), 1, async_op=True
    )


@pytest.mark.parametrize("pace", PACES)
def test_calls_of_all_kinds_take_turns(pace: str) -> None:
    """Lengths, asynchronous ones that nobody waits for, and a broadcast between."""

    def body(rank: Rank) -> list[Tensor]:
        seen = []
        for turn in range(4):
            other = rank.computed(numbers(rank.rank, turn, 2 * COUNT))
            rank.all_reduce(other)
            tensor = rank.computed(numbers(rank.rank, turn))
            work = rank.torch_group.allreduce([tensor], options(asyncOp=True))
            assert work is not None
            rank.all_reduce(tensor)
            rank.all_reduce(tensor)
            shared = rank.computed(numbers(rank.rank, turn))
            broadcast(rank, shared)
            rank.all_reduce(shared)
            seen += [rank.read(tensor), rank.read(shared), rank.read(other)]
        return seen

    for seen in together(2, body, pace):
        for turn in range(4):
            tensor, shared, other = seen[3 * turn : 3 * turn + 3]
            assert torch.equal(tensor, total(2, turn) * 4)
            assert torch.equal(shared, numbers(1, turn) * 2)
            assert torch.equal(other, total(2, turn, 2 * COUNT))


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("on_cpu", [{0}, {1}, {0, 2}])
def test_ranks_on_the_cpu_take_part(on_cpu: set[int], pace: str) -> None:
    def body(rank: Rank) -> list[Tensor]:
        seen = []
        for turn in range(5):
            values = numbers(rank.rank, turn)
            if rank.rank in on_cpu:
                rank.all_reduce(values)
                seen.append(values)
            else:
                tensor = rank.computed(values)
                assert rank.all_reduce(tensor) == (turn > 0)
                seen.append(rank.read(tensor))
        return seen

    for seen in together(3, body, pace):
        for turn, got in enumerate(seen):
            assert torch.equal(got, total(3, turn))


@pytest.mark.parametrize("op", [ReduceOp.AVG, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_reductions_and_dtypes(op: object, dtype: torch.dtype) -> None:
    def body(rank: Rank) -> list[Tensor]:
        seen = []
        for turn in range(3):
            values = (numbers(rank.rank, turn, 2 * COUNT) % 100 + rank.rank).to(dtype)
            tensor, other = rank.computed(values), rank.computed(values)
            rank.all_reduce(tensor, reduceOp=op)
            rank.torch_group.group.all_reduce(values, NAMES[op])
            rank.all_reduce(other, reduceOp=ReduceOp.SUM)  # is not mixed up with it
            seen += [rank.read(tensor), values]
        return seen

    for seen in together(2, body):
        for got, wanted in zip(seen[::2], seen[1::2], strict=True):
            assert torch.equal(got, wanted)


NAMES: dict[object, str] = {ReduceOp.AVG: "mean", ReduceOp.MAX: "max"}


def test_other_calls_need_the_general_path() -> None:
    """Though one like them has run: they have the right values all the same."""

    def body(rank: Rank) -> list[Tensor]:
        assert not rank.all_reduce(rank.computed(numbers(rank.rank)))
        assert rank.all_reduce(rank.computed(numbers(rank.rank)))
        short, tensor = rank.torch_group._repeated.on_devices, torch.ones(COUNT)
        half = dist._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]
        given = [tensor.as_subclass(OnDevice)]
        assert not short.all_reduce(given, options(reduceOp=half))
        seen: list[Tensor] = []

        def take(tensor: Tensor, **fields: object) -> None:
            assert not rank.all_reduce(tensor, **fields)
            seen.append(rank.read(tensor))

        take(rank.computed(numbers(rank.rank)), timeout=timedelta(seconds=60))
        take(rank.computed(numbers(rank.rank)), asyncOp=True)
        whole = rank.computed(torch.stack([numbers(rank.rank)] * 2, 1))
        take(whole[:, 0].as_subclass(OnDevice))
        rank.torch_group._start_coalescing()
        tensor = rank.computed(numbers(rank.rank))
        work = rank.torch_group.allreduce([tensor], options())
        assert work is not None
        rank.torch_group._end_coalescing().wait()
        return [*seen, rank.read(tensor)]

    for seen in together(2, body):
        assert len(seen) == 4
        for got in seen:
            assert torch.equal(got, total(2))


def test_a_parameter_keeps_its_gradient_and_no_memory_is_kept() -> None:
    def body(rank: Rank) -> tuple[Tensor, bool]:
        for _ in range(2):
            rank.all_reduce(rank.computed(numbers(rank.rank)))
        tensor = rank.computed(numbers(rank.rank)).requires_grad_()
        assert rank.all_reduce(tensor)
        assert tensor.requires_grad
        assert tensor.grad_fn is None
        seen = rank.read(tensor.detach())
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        del tensor
        return seen, storage.expired()  # type: ignore[no-untyped-call]

    for seen, is_freed in together(2, body):
        assert torch.equal(seen, total(2))
        assert is_freed


def test_observers_see_every_call() -> None:
    class Recorder(Observers):
        def __init__(self, before: Observer | None) -> None:
            super().__init__([] if before is None else [before])
            self.ends: list[tuple[str, int, bool]] = []

        def ended(
            self,
            call: Call,
            since_s: float,
            until_s: float,
            error: BaseException | None,
        ) -> None:
            super().ended(call, since_s, until_s, error)
            assert until_s >= since_s
            self.ends.append((call.operation, call.num_bytes, error is None))

    def body(rank: Rank) -> list[tuple[str, int, bool]]:
        rank.all_reduce(rank.computed(numbers(rank.rank)))
        assert rank.all_reduce(rank.computed(numbers(rank.rank)))
        handle = handle_of(rank.torch_group.group)
        recorder = Recorder(handle.executor.observer)  # metrics count open groups
        handle.observe(recorder)
        for turn in range(3):
            again = rank.all_reduce(rank.computed(numbers(rank.rank)))
            assert again == (turn > 0), "prepared anew for this observer"
        return recorder.ends

    assert together(2, body) == [[("all_reduce", 4 * COUNT, True)] * 3] * 2


def test_calls_that_differ_are_told_apart() -> None:
    def body(rank: Rank) -> str:
        for count in (COUNT, COUNT + 1):
            for _ in range(2):
                rank.all_reduce(rank.computed(numbers(rank.rank, 0, count)))
        with pytest.raises(CallMismatch) as caught:
            rank.all_reduce(rank.computed(numbers(rank.rank, 0, COUNT + rank.rank)))
        return str(caught.value)

    for text in together(2, body):
        assert f"all_reduce({COUNT} " in text
        assert f"all_reduce({COUNT + 1} " in text


def test_a_peer_that_does_not_come_is_named() -> None:
    is_over = threading.Event()

    def body(rank: Rank) -> str:
        for _ in range(2):
            rank.all_reduce(rank.computed(numbers(rank.rank)))
        rank.torch_group.set_timeout(timedelta(seconds=1))
        if rank.rank == 1:
            assert is_over.wait(120)
            return ""
        rank.torch_group._identity.ranks[1] = 7
        tensor = rank.computed(numbers(rank.rank))
        with pytest.raises(DeadlineExceeded) as caught:
            rank.all_reduce(tensor)
        is_over.set()
        return str(caught.value)

    text, _ = together(2, body)
    assert "rank 1 of this group is global rank 7" in text
    assert f"all_reduce({COUNT} " in text


def test_nothing_is_copied_any_more_after_a_failure() -> None:
    has_begun = threading.Event()

    def body(rank: Rank) -> int:
        for _ in range(2):
            rank.all_reduce(rank.computed(numbers(rank.rank)))
        if rank.rank == 1:
            assert has_begun.wait(120)
            rank.torch_group.group.abort("enough")
            return 0
        before, tensor = rank.device.num_copies, rank.computed(numbers(0))

        def watch() -> None:
            while rank.device.num_copies == before:  # then it waits for rank 1
                time.sleep(0.001)
            has_begun.set()

        threading.Thread(target=watch, daemon=True).start()
        with pytest.raises(GroupAborted, match="enough"):
            rank.all_reduce(tensor)
        copies = rank.device.num_copies
        rank.device.main.mark().synchronize()
        return rank.device.num_copies - copies

    assert together(2, body) == [0, 0]
