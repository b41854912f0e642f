"""Tensors as programs have them: strided, expanded, lazy, unaligned, with gradients."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from ringleader.engine import arrays_by_address as prepared
from ringleader.errors import ConfigError, GroupAborted
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_threads, run_world, world

TRANSPORTS = ["memory", "tcp", "shm"]
LARGE = 300_000


def numbers(rank: int, *shape: int) -> Tensor:
    count = int(np.prod(shape))
    return ((torch.arange(count) * 7 + rank * 1009) % 4093).double().view(shape)


def make_transposed(rank: int) -> Tensor:
    return numbers(rank, 30, 40).t()


def make_slice(rank: int) -> Tensor:
    return numbers(rank, 50, 60)[3:40:2, 1::7]


def make_large_slice(rank: int) -> Tensor:
    return numbers(rank, 2 * LARGE)[1::2]


def make_negative(rank: int) -> Tensor:
    """A view that torch negates when it is read; contiguous, so it looks harmless."""
    return torch._neg_view(numbers(rank, 64) + 1)


def make_gradient_leaf(rank: int) -> Tensor:
    return numbers(rank, 100).requires_grad_()


def make_gradient_view(rank: int) -> Tensor:
    return numbers(rank, 20, 30).requires_grad_().detach().t()


def make_column(rank: int) -> Tensor:
    return numbers(rank, 90, 3)[:, 1]


def make_scalar(rank: int) -> Tensor:
    return torch.tensor(float(rank + 1), dtype=torch.float64)


def make_channels_last(rank: int) -> Tensor:
    return numbers(rank, 2, 3, 4, 5).to(memory_format=torch.channels_last)


MAKERS: list[Callable[[int], Tensor]] = [
    make_transposed,
    make_slice,
    make_large_slice,
    make_negative,
    make_gradient_leaf,
    make_gradient_view,
    make_column,
    make_scalar,
    make_channels_last,
]


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.mean(0),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("make", MAKERS, ids=lambda m: m.__name__)
def test_a_view_is_reduced_in_place_and_nothing_beside_it_is_touched(
    make: Callable[[int], Tensor], transport: str
) -> None:
    size = 3
    everybody = [make(r).detach().clone() for r in range(size)]
    expected = {
        "sum": torch.stack(everybody).sum(0),
        "max": torch.stack(everybody).amax(0),
    }

    def body(group: Group) -> None:
        for op in ("sum", "max"):
            for _ in range(3):  # the second time a prepared form may run
                tensor = make(group.rank)
                outside = beside(tensor)
                group.all_reduce(tensor, op)
                assert torch.equal(tensor.detach(), expected[op])
                assert torch.equal(beside(tensor), outside)

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
def test_more_addresses_than_prepared_calls_remember(
    shift: int, size: int, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, num = 4, 20
    monkeypatch.setattr(prepared, "MAX_CHUNKS", 8)

    def body(group: Group) -> None:
        for dtype, op in itertools.product((torch.float32, torch.bfloat16), OPS):
            memory = bytearray(num * 16 + shift)
            for i in range(num):
                tensor = torch.frombuffer(
                    memory, dtype=dtype, count=count, offset=16 * i + shift
                )
                tensor.copy_(torch.arange(count) + group.rank + i % 8)
                group.all_reduce(tensor, op)
                parts = [torch.arange(count) + r + i % 8 for r in range(size)]
                exact = OPS[op](torch.stack(parts).double())
                assert torch.equal(tensor, exact.to(dtype))

    run_world(size, body, transport)


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    memory = np.zeros(1000, np.float32)
    chunks = prepared.ChunksByAddress([2], [1, 1], memory.dtype)
    for i in range(len(memory) - 1):
        first, second = chunks[(memory.ctypes.data + 4 * i,)]
        first[:], second[:] = i, i + 1
        assert 0 < 2 * len(chunks) <= prepared.MAX_CHUNKS
    assert memory.tolist() == list(range(len(memory)))


def beside(tensor: Tensor) -> Tensor:
    """What else lies in the memory of ``tensor``."""
    memory = torch.as_strided(
        tensor.detach(), (tensor.untyped_storage().nbytes() // 8,), (1,), 0
    ).clone()
    torch.as_strided(
        memory, tensor.shape, tensor.stride(), tensor.storage_offset()
    ).zero_()
    return memory


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("make", MAKERS, ids=lambda m: m.__name__)
def test_a_view_may_be_the_input_or_the_output_of_every_operation(
    make: Callable[[int], Tensor], transport: str
) -> None:
    size = 2
    plain = [make(r).detach().clone().contiguous() for r in range(size)]

    def body(group: Group) -> None:
        rank, peer = group.rank, 1 - group.rank
        blank = make(rank)
        group.broadcast(blank if rank else make(0), src=0)
        assert rank == 0 or torch.equal(blank.detach(), plain[0])

        outs = [make(rank), make(rank)]
        group.all_gather(outs, make(rank))
        assert all(torch.equal(o.detach(), p) for o, p in zip(outs, plain, strict=True))

        out = make(rank)
        group.reduce_scatter(out, [make(rank), make(rank)])
        assert torch.equal(out.detach(), plain[0] + plain[1])

        out = make(rank)
        group.scatter(out, [make(0), make(1)] if rank == 0 else None, src=0)
        assert torch.equal(out.detach(), plain[rank])

        outs = [make(rank), make(rank)]
        group.all_to_all(outs, [make(rank), make(rank)])
        assert all(torch.equal(o.detach(), p) for o, p in zip(outs, plain, strict=True))

        out = make(rank)
        group.sendrecv(make(rank), peer, out, peer)
        assert torch.equal(out.detach(), plain[peer])

        out, mine = make(rank), make(rank)
        group.all_reduce(mine, out=out)
        assert torch.equal(out.detach(), plain[0] + plain[1])
        assert torch.equal(mine.detach(), plain[rank])

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [6, LARGE])
def test_conjugate_views_are_read_and_written_as_what_they_show(
    count: int, transport: str
) -> None:
    def make(rank: int) -> Tensor:
        return torch.complex(numbers(rank, count), numbers(rank + 5, count)).conj()

    right = make(0).resolve_conj() + make(1).resolve_conj()

    def body(group: Group) -> None:
        tensor = make(group.rank)
        group.all_reduce(tensor)
        assert torch.equal(tensor.resolve_conj(), right)
        out = torch.zeros(count, dtype=torch.complex128).conj()
        group.all_reduce(make(group.rank), out=out)
        assert torch.equal(out.resolve_conj(), right)
        tensor = make(group.rank)
        group.broadcast(tensor, src=1)
        assert torch.equal(tensor.resolve_conj(), make(1).resolve_conj())

    run_world(2, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_expanded_tensor_can_be_read_but_not_written(transport: str) -> None:
    def body(group: Group) -> None:
        wide = torch.full((1,), float(group.rank + 1)).expand(LARGE)
        out = torch.zeros(LARGE)
        group.all_reduce(wide, out=out)
        assert bool((out == 3).all())
        calls: list[Callable[[], object]] = [
            lambda: group.all_reduce(wide),
            lambda: group.broadcast(wide, src=1 - group.rank),
            lambda: group.recv(wide, 1 - group.rank),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="clone"):
                call()
        group.all_reduce(out)  # a refused call leaves the group as it was
        assert bool((out == 6).all())

    run_world(2, body, transport)


@pytest.mark.parametrize("count", [5, 1000, LARGE + 1])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tensors_may_begin_at_any_byte(transport: str, count: int) -> None:
    """No code assumes that tensors are aligned."""

    def unaligned(dtype: torch.dtype, offset: int, fill: float) -> Tensor:
        item = torch.empty(0, dtype=dtype).element_size()
        memory = np.zeros(count * item + offset, np.uint8)
        tensor = torch.frombuffer(memory.data, dtype=dtype, offset=offset, count=count)
        return tensor.fill_(fill)

    def body(group: Group) -> None:
        rank, peer = group.rank, 1 - group.rank
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            for offset in (1, 2, 3, 7):
                for algorithm in (None, "ring"):
                    tensor = unaligned(dtype, offset, rank + 1)
                    group.all_reduce(tensor, algorithm=algorithm)
                    assert bool((tensor == 3).all())
                out = unaligned(dtype, offset, -1)
                group.sendrecv(unaligned(dtype, offset, rank), peer, out, peer)
                assert bool((out == peer).all())
                tensor = unaligned(dtype, offset, rank + 1)
                group.broadcast(tensor, src=1)
                assert bool((tensor == 2).all())
        raw = torch.zeros(count + 3, dtype=torch.uint8)
        part = raw[1:-2].add_(rank + 1)
        group.all_reduce(part)
        assert bool((part == 3).all())
        assert [raw[0].item(), raw[-2].item(), raw[-1].item()] == [0, 0, 0]

    run_world(2, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_input_of_an_out_of_place_call_is_never_written(transport: str) -> None:
    size = 3
    names = ["exchange", "direct", "ring", "doubling", "halving", "tree", "star"]
    names += ["shm"] if transport == "shm" else []

    def body(group: Group) -> None:
        for name in names:
            for count in (1, 50, LARGE):
                source, out = numbers(group.rank, count), torch.zeros(count).double()
                group.all_reduce(source, out=out, algorithm=name)
                assert torch.equal(source, numbers(group.rank, count)), name
                everybody = torch.stack([numbers(r, count) for r in range(size)])
                assert torch.equal(out, everybody.sum(0))

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_input_of_an_out_of_place_call_is_not_written_when_it_fails(
    transport: str,
) -> None:
    with world(3, transport) as groups:
        sources = [numbers(r, LARGE) for r in range(3)]

        def body(rank: int) -> None:
            out = torch.zeros(LARGE).double()
            with contextlib.suppress(GroupAborted):
                while True:
                    groups[rank].all_reduce(sources[rank], out=out, algorithm="ring")

        def end_it() -> None:
            time.sleep(0.05)  # a few rounds
            groups[1].abort()

        run_threads([*(lambda r=r: body(r) for r in range(3)), end_it])
        for rank, source in enumerate(sources):
            assert torch.equal(source, numbers(rank, LARGE))


def test_what_makes_no_sense_is_refused_and_the_group_lives_on() -> None:
    with world(2) as groups:
        group = groups[0]
        calls: list[Callable[[], object]] = [
            lambda: group.all_reduce(torch.ones(3), "median"),
            lambda: group.all_reduce(torch.ones(3), algorithm="magic"),
            lambda: group.all_reduce(torch.ones(3), algorithm="shm"),
            lambda: group.all_reduce(torch.ones(3), "bor"),
            lambda: group.all_reduce(torch.ones(3, dtype=torch.bool), "mean"),
            lambda: group.all_reduce(torch.ones(3).to_sparse()),
            lambda: group.all_reduce(torch.ones(3, device="meta")),
            lambda: group.all_reduce(torch.ones(3), out=torch.ones(4)),
            lambda: group.all_reduce(torch.ones(3), out=torch.ones(3).double()),
            lambda: group.broadcast(torch.ones(3), src=2),
            lambda: group.broadcast(torch.ones(3), src=-1),
            lambda: group.all_gather(torch.ones(7), torch.ones(3)),
            lambda: group.all_gather([torch.ones(3)], torch.ones(3)),
            lambda: group.reduce_scatter(torch.ones(2), torch.ones(5)),
            lambda: group.gather(None, torch.ones(2), dst=0),
            lambda: group.scatter(torch.ones(2), None, src=0),
            lambda: group.all_to_all(torch.ones(4), torch.ones(4), in_splits=[1, 2]),
            lambda: group.subgroup([0, 0]),
            lambda: group.subgroup([]),
            lambda: group.subgroup([0, 5]),
        ]
        for call in calls:
            with pytest.raises(ConfigError):
                call()

        def still_works(each: Group) -> float:
            tensor = torch.ones(3)
            each.all_reduce(tensor)
            return tensor[0].item()

        assert run_threads([lambda g=g: still_works(g) for g in groups]) == [2.0, 2.0]  # type: ignore[misc]


def test_a_tensor_can_still_be_resized_after_a_collective() -> None:
    def body(group: Group) -> None:
        for tensor in (torch.ones(3), torch.ones(1_000_000)):
            group.all_reduce(tensor)
            tensor.untyped_storage().resize_(0)  # what FSDP does between steps

    run_world(2, body)
