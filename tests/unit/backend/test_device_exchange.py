"""Collectives in memory that all ranks map, on the simulated device of the kit.

Ranks are threads here and map nothing: a grant is a number under which the memory of a
rank is found. What the device does happens as late as it may.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceScatterOptions,
)

from ringleader.backend import (
    device_collectives,
    device_exchange,
    device_memory,
    device_slots,
    staging,
)
from ringleader.backend.device_collectives import (
    AllReduce,
    Collective,
    ReduceScatter,
    Slot,
)
from ringleader.backend.device_exchange import DeviceExchange
from ringleader.backend.device_memory import GRANT_BYTES, grant, read_grant
from ringleader.backend.host_run import run_on_host
from ringleader.backend.staging import HostStaging
from ringleader.backend.torch_options import reduction
from ringleader.errors import CallMismatch, RingleaderError
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_world
from tests.kit.fake_accelerator import PACES, Accelerator

T = TypeVar("T")
GPU = b"\1" * 16
ID_OF = device_memory.device_id
COUNTS = [1, 64, 255, 256, 257, 1000]
"""Of float32: less than a slot, a slot, several."""


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let threads find each other's memory, in small slots."""
    numbers, memory = itertools.count(1), dict[int, Tensor]()

    def grant(own: Tensor) -> bytes:
        number = next(numbers)
        memory[number] = own
        return number.to_bytes(GRANT_BYTES, "little")

    def open_grant(row: bytes, _: object, num_bytes: int) -> Tensor:
        found = memory.get(int.from_bytes(row, "little"))
        if found is None:
            raise RuntimeError("nothing was granted")
        return found[:num_bytes]

    monkeypatch.setattr(device_memory, "grant", grant)
    monkeypatch.setattr(device_memory, "open_grant", open_grant)
    monkeypatch.setattr(device_memory, "device_id", lambda _: GPU)
    monkeypatch.setattr(device_memory, "refuse", lambda _: None)
    monkeypatch.setattr(device_slots, "SLOT_BYTES", 1024)
    monkeypatch.setattr(device_exchange, "MIN_BYTES", 0)
    monkeypatch.setattr(staging, "SLOT_BYTES", 2048)
    yield
    memory.clear()


class Rank:
    """A rank with a simulated device; ``num_staged`` calls went through the host."""

    def __init__(self, group: Group, pace: str = "late") -> None:
        self.group = group
        self.rank, self.size = group.rank, group.size
        self.device = Accelerator(pace, seed=group.rank)
        self.stage = HostStaging(self.device)
        self.exchange = DeviceExchange(group)
        self.num_staged = 0

    def computed(self, values: Tensor) -> Tensor:
        """Return a tensor that a pending kernel of the user fills."""
        tensor = torch.zeros_like(values)
        self.device.compute(lambda: tensor.copy_(values))
        return tensor

    def start(
        self,
        opts: Any,  # noqa: ANN401 - torch's options have no common class
        ins: list[Tensor],
        outs: list[Tensor],
        body: Callable[[list[Tensor], list[Tensor]], object],
        *,
        on_cpu: bool = False,
        width: int = 0,
    ) -> Callable[[], None]:
        def counted(ins: list[Tensor], outs: list[Tensor], **_: object) -> Any:  # noqa: ANN401
            self.num_staged += 1
            return body(ins, outs)

        question = self.exchange.question(opts, ins, outs)
        assert question is not None
        if on_cpu:
            ask = question.are_on_host
            work = run_on_host(self.group, ins, outs, counted, width, are_on_host=ask)
            return lambda: work.wait(120)
        work, deliver = self.stage.run(
            self.group, ins, outs, counted, width, attempt=question, async_op=True
        )

        def wait() -> None:
            work.wait(120)
            deliver()

        return wait

    def all_reduce(
        self,
        tensor: Tensor,
        op: Any = ReduceOp.SUM,  # noqa: ANN401 - an enumeration or an object
        *,
        on_cpu: bool = False,
        width: int = 0,
    ) -> Callable[[], None]:
        opts = AllreduceOptions()
        opts.reduceOp = op
        name = reduction(op).name

        def body(_: list[Tensor], outs: list[Tensor]) -> object:
            return self.group.all_reduce(outs[0], name)

        return self.start(opts, [tensor], [tensor], body, on_cpu=on_cpu, width=width)


def on_devices(size: int, body: Callable[[Rank], T], pace: str = "late") -> list[T]:
    """Run ``body`` on every rank; no memory may be used without permission."""

    def live(group: Group) -> T:
        rank = Rank(group, pace)
        result = body(rank)
        assert rank.device.mistakes == []
        rank.exchange.close()
        return result

    return run_world(size, live)


def numbers(count: int, rank: int, turn: int = 0) -> Tensor:
    return torch.arange(count, dtype=torch.float32) * 3 + rank * 1000 + turn * 7


def total(count: int, size: int, turn: int = 0) -> Tensor:
    return torch.stack([numbers(count, r, turn) for r in range(size)]).sum(0)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce(size: int, pace: str) -> None:
    def body(rank: Rank) -> None:
        for count in COUNTS:
            tensor = rank.computed(numbers(count, rank.rank))
            rank.all_reduce(tensor)()
            assert torch.equal(rank.device.read(tensor), total(count, size))
        assert rank.num_staged == 0

    on_devices(size, body, pace)


def test_many_are_in_flight() -> None:
    def body(rank: Rank) -> None:
        tensors = [rank.computed(numbers(400, rank.rank, t)) for t in range(7)]
        waits = [rank.all_reduce(tensor) for tensor in tensors]
        for wait in reversed(waits):
            wait()
        for turn, tensor in enumerate(tensors):
            assert torch.equal(rank.device.read(tensor), total(400, 2, turn))
        assert rank.num_staged == 0

    on_devices(2, body, "mixed")


def test_means_and_gaps() -> None:
    def body(rank: Rank) -> None:
        values = numbers(600, rank.rank).view(30, 20)
        tensor = rank.computed(values).t()
        rank.all_reduce(tensor, ReduceOp.AVG)()
        wanted = (total(600, 3) / 3).view(30, 20).t()
        assert torch.allclose(rank.device.read(tensor), wanted)
        odd = rank.computed(torch.full((300,), rank.rank - 3, dtype=torch.int32))
        rank.all_reduce(odd, ReduceOp.AVG)()
        assert rank.device.read(odd).tolist() == [-2] * 300
        rank.all_reduce(high := rank.computed(numbers(300, rank.rank)), ReduceOp.MAX)()
        assert torch.equal(rank.device.read(high), numbers(300, 2))
        assert rank.num_staged == 0

    on_devices(3, body)


@pytest.mark.parametrize("pace", PACES)
def test_what_fsdp_uses(pace: str) -> None:
    size = 3

    def body(rank: Rank) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("through the host")

        for count in COUNTS:
            whole = torch.zeros(size * count)
            outs = list(whole.chunk(size))
            source = rank.computed(numbers(count, rank.rank))
            rank.start(AllgatherOptions(), [source], outs, refuse)()
            wanted = torch.cat([numbers(count, r) for r in range(size)])
            assert torch.equal(rank.device.read(whole), wanted)

            ins = list(rank.computed(numbers(size * count, rank.rank)).chunk(size))
            out = ins[rank.rank] if count == 257 else torch.zeros(count)
            rank.start(ReduceScatterOptions(), ins, [out], refuse)()
            wanted = total(size * count, size).chunk(size)[rank.rank]
            assert torch.equal(rank.device.read(out), wanted)

            opts = BroadcastOptions()
            opts.rootRank = 1
            tensor = rank.computed(numbers(count, rank.rank))
            both = ([tensor], []) if rank.rank == 1 else ([], [tensor])
            rank.start(opts, *both, refuse)()
            assert torch.equal(rank.device.read(tensor), numbers(count, 1))

    on_devices(size, body, pace)


def test_a_tensor_of_the_cpu_takes_all_ranks_through_the_host() -> None:
    def body(rank: Rank) -> None:
        for turn in range(6):
            on_cpu = turn % 2 == 1 and rank.rank == turn % 4 // 2
            tensor = numbers(500, rank.rank, turn)
            if not on_cpu:
                tensor = rank.computed(tensor)
            rank.all_reduce(tensor, on_cpu=on_cpu)()
            found = tensor if on_cpu else rank.device.read(tensor)
            assert torch.equal(found, total(500, 2, turn))
        assert rank.num_staged == 3

    on_devices(2, body)


def test_tensors_are_cut_alike_unless_all_are_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also beside a rank whose device cannot take part: it stages its tensors."""
    count = 2000  # in several chunks

    def reduce(rank: Rank, *, on_cpu: bool) -> int:
        tensor, before = numbers(count, rank.rank), rank.num_staged
        if not on_cpu:
            tensor = rank.computed(tensor)
        rank.all_reduce(tensor, on_cpu=on_cpu, width=1)()
        found = tensor if on_cpu else rank.device.read(tensor)
        assert torch.equal(found, total(count, 2))
        return rank.num_staged - before

    def body(rank: Rank) -> None:
        assert reduce(rank, on_cpu=True) == 1
        assert reduce(rank, on_cpu=rank.rank == 0) > 1
        assert reduce(rank, on_cpu=True) == 1
        assert reduce(rank, on_cpu=False) == 0

    on_devices(2, body)
    nothing = device_memory.NO_DEVICE
    monkeypatch.setattr(device_memory, "device_id", lambda _: nothing)

    def without_ids(rank: Rank) -> None:
        assert reduce(rank, on_cpu=rank.rank == 0) > 1
        assert reduce(rank, on_cpu=False) > 1
        assert reduce(rank, on_cpu=True) == 1

    on_devices(2, without_ids)


def test_tensors_on_several_gpus_take_the_host_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = itertools.cycle([b"\1" * 16, b"\2" * 16])
    monkeypatch.setattr(device_memory, "device_id", lambda _: next(ids))

    def body(rank: Rank) -> None:
        for turn in range(3):
            tensor = rank.computed(numbers(500, rank.rank, turn))
            rank.all_reduce(tensor)()
            assert torch.equal(rank.device.read(tensor), total(500, 2, turn))
        assert rank.num_staged == 3

    on_devices(2, body)


@pytest.mark.parametrize("fails", ["grant", "open_grant"])
def test_memory_that_one_rank_cannot_share_is_shared_by_none(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    works, turns = getattr(device_memory, fails), itertools.count()

    def once(*given: object) -> object:
        if next(turns) == 1:
            raise RuntimeError("operation not permitted")
        return works(*given)

    monkeypatch.setattr(device_memory, fails, once)

    def body(rank: Rank) -> None:
        for turn in range(3):
            tensor = rank.computed(numbers(500, rank.rank, turn))
            rank.all_reduce(tensor)()
            assert torch.equal(rank.device.read(tensor), total(500, 3, turn))
        assert rank.num_staged == 3

    on_devices(3, body)


def test_calls_that_differ_are_reported_by_the_host() -> None:
    def body(rank: Rank) -> type[BaseException]:
        rank.all_reduce(rank.computed(numbers(500, rank.rank)))()
        with pytest.raises(RingleaderError) as caught:
            rank.all_reduce(rank.computed(numbers(500 + rank.rank, rank.rank)))()
        return caught.type

    assert CallMismatch in on_devices(2, body)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex128])
def test_every_element_is_in_one_piece(size: int, dtype: torch.dtype) -> None:
    """Whatever the room: slots of odd sizes, parts that are cut unevenly."""
    for count, slot_bytes in itertools.product((1, 127, 1000), (1024, 4000, 100_000)):
        slots = [Slot(torch.zeros(slot_bytes, dtype=torch.uint8)) for _ in range(size)]
        tensors = [(numbers(count, r) % 61).to(dtype) for r in range(size)]
        parts = [[t + q for q in range(size)] for t in tensors]
        outs = [torch.zeros(count, dtype=dtype) for _ in range(size)]
        sums = [t.clone() for t in tensors]
        works: list[Sequence[Collective]] = [
            [AllReduce([sums[r]], "sum", slot_bytes) for r in range(size)],
            [
                ReduceScatter(r, outs[r], parts[r], "sum", slot_bytes)
                for r in range(size)
            ],
        ]
        for ranks in works:
            for piece in range(ranks[0].num_pieces):
                for rank, work in enumerate(ranks):
                    work.publish(piece, slots[rank])
                for work in ranks:
                    work.collect(piece, slots)
        wanted = torch.stack(tensors).sum(0)
        for rank in range(size):
            assert torch.equal(sums[rank], wanted)
            assert torch.equal(outs[rank], wanted + size * rank)


def test_a_slot_keeps_its_places_in_and_out_of_inference_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_collectives, "MAX_PLACES", 2)
    slot, like = Slot(torch.zeros(1024, dtype=torch.uint8)), torch.zeros(8)
    with torch.inference_mode():
        place = slot.place(like)
    place.fill_(1.0)  # fails for a view that was made in inference mode
    assert slot.place(like) is place
    slot.place(like, 512).fill_(2.0)
    whole = slot.place(torch.zeros(256))  # the third: the others are made again
    assert slot.place(like) is not place
    assert whole[:8].tolist() == [1.0] * 8
    assert whole[8:].tolist() == [0.0] * 120 + [2.0] * 8 + [0.0] * 120


# -- grants ------------------------------------------------------------------------


class Shared:
    """Memory whose storage answers as that of CUDA does."""

    def __init__(self, counter: bytes = b"/torch_437_155108744_0") -> None:
        self.given = (0, b"h" * 66, 2048, 512, counter, 7, b"e" * 64, True)

    def untyped_storage(self) -> Shared:
        return self

    def _share_cuda_(self) -> tuple[Any, ...]:
        return self.given


def granted(memory: Shared) -> bytes:
    given: Any = memory
    return grant(given)


def test_a_grant_has_the_values_that_torch_gave() -> None:
    memory = Shared()
    row = granted(memory)
    assert len(row) == GRANT_BYTES
    assert read_grant(row, 2048) == memory.given[1:]
    with pytest.raises(RuntimeError, match="longer than expected"):
        granted(Shared(b"/" + b"x" * GRANT_BYTES))


@pytest.mark.parametrize(
    "row",
    [
        bytes(GRANT_BYTES),
        b"\xff" * GRANT_BYTES,
        granted(Shared(b"/../../etc/passwd")),
        granted(Shared(b"")),
        granted(Shared())[:100],
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(row: bytes) -> None:
    with pytest.raises(RuntimeError, match="makes no sense"):
        read_grant(row, 2048)


def test_a_grant_of_another_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match="makes no sense"):
        read_grant(granted(Shared()), 4096)


def test_only_a_gpu_has_an_id() -> None:
    assert ID_OF(torch.device("cpu")) == device_memory.NO_DEVICE
