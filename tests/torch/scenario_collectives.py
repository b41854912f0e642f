"""Collectives as programs call them: plain, functional, with gradients, coalesced."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.kit.reference import check, check_all, tensor

ROWS, WIDTH = 3, 4


def given(rank: int, size: int) -> Tensor:
    """Input of ``rank``: ROWS rows for each rank."""
    return tensor(ROWS * size, WIDTH, seed=30 + rank)


def everybodys(size: int) -> list[Tensor]:
    return [given(r, size) for r in range(size)]


def uneven(sender: int, receiver: int) -> int:
    """Rows of an uneven all-to-all; none from rank 0 to itself."""
    return (2 * sender + receiver) % 4


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def now(value: Tensor) -> Tensor:
    """The tensor of a functional collective, when it is there."""
    return cast(Tensor, cast(Any, funcol).wait_tensor(value))


# -- plain -------------------------------------------------------------------------


def reductions(rank: int, size: int) -> None:
    stack = torch.stack(everybodys(size))
    expected = {
        dist.ReduceOp.SUM: stack.sum(0),
        dist.ReduceOp.AVG: stack.mean(0),
        dist.ReduceOp.PRODUCT: stack.prod(0),
        dist.ReduceOp.MIN: stack.amin(0),
        dist.ReduceOp.MAX: stack.amax(0),
    }
    for op, wanted in expected.items():
        for dtype in (torch.float32, torch.float64):
            mine = given(rank, size).to(dtype)
            dist.all_reduce(mine, op)
            check(mine, wanted, what=f"{op} {dtype}")
    for dst in range(size):
        mine = given(rank, size).float()
        dist.reduce(mine, dst)
        if rank == dst:
            check(mine, stack.sum(0), what=f"reduce to {dst}")


def means_of_integers(rank: int, size: int) -> None:
    """As NCCL: the sum, divided, truncated toward zero."""
    average = dist.ReduceOp.AVG
    for dtype in (torch.int8, torch.int32, torch.int64):
        rows = torch.stack([torch.arange(-9, 9) - r * 2 for r in range(size)])
        rows = rows.repeat_interleave(size, 1)
        wanted = torch.div(rows.sum(0), size, rounding_mode="trunc").double()
        whole, part = rows[rank].to(dtype), wanted.chunk(size)[rank]
        mine = whole.clone()
        dist.all_reduce(mine, average)
        check(mine, wanted, what=f"all_reduce {dtype}")
        both = [whole.clone(), whole.clone()]
        dist.all_reduce_coalesced(both, average)
        check_all(both, [wanted, wanted], what=f"all_reduce_coalesced {dtype}")
        functional = funcol.all_reduce(whole.clone(), "avg", world())
        check(now(functional), wanted, what=f"functional all_reduce {dtype}")
        mine = whole.clone()
        dist.reduce(mine, size - 1, average)
        if rank == size - 1:
            check(mine, wanted, what=f"reduce {dtype}")
        mine = torch.empty(len(part), dtype=dtype)
        dist.reduce_scatter(mine, list(whole.chunk(size)), average)
        check(mine, part, what=f"reduce_scatter {dtype}")
        dist.reduce_scatter_tensor(mine, whole, average)
        check(mine, part, what=f"reduce_scatter_tensor {dtype}")
        functional = funcol.reduce_scatter_tensor_coalesced(
            [whole, whole], "avg", [0, 0], world()
        )
        for each in functional:
            check(now(each), part, what=f"reduce_scatter_tensor_coalesced {dtype}")


def plain_collectives(rank: int, size: int) -> None:
    """FT-7: from and to every rank, not only rank 0."""
    pieces = everybodys(size)
    for src in range(size):
        mine = given(rank, size).float()
        dist.broadcast(mine, src)
        check(mine, pieces[src], what=f"broadcast from {src}")
        here = [torch.empty_like(mine) for _ in range(size)] if rank == src else None
        dist.gather(given(rank, size).float(), here, dst=src)
        if here is not None:
            check_all(here, pieces, what=f"gather to {src}")
        parts = list(given(src, size).float().chunk(size)) if rank == src else None
        mine = torch.empty(ROWS, WIDTH)
        dist.scatter(mine, parts, src=src)
        check(mine, pieces[src].chunk(size)[rank], what=f"scatter from {src}")
    gathered = [torch.empty(ROWS * size, WIDTH) for _ in range(size)]
    dist.all_gather(gathered, given(rank, size).float())
    check_all(gathered, pieces, what="all_gather")
    flat = torch.empty(ROWS * size * size, WIDTH)
    dist.all_gather_into_tensor(flat, given(rank, size).float())
    check(flat, torch.cat(pieces), what="all_gather_into_tensor")
    total = sum(pieces, torch.zeros(())).chunk(size)[rank]
    mine = torch.empty(ROWS, WIDTH)
    dist.reduce_scatter(mine, list(given(rank, size).float().chunk(size)))
    check(mine, total, what="reduce_scatter")
    dist.reduce_scatter_tensor(mine, given(rank, size).float())
    check(mine, total, what="reduce_scatter_tensor")
    dist.barrier()


def calls_that_repeat(rank: int, size: int) -> None:
    """Calls like earlier ones, whose memory has had another dtype, length or layout."""
    room, ranks = torch.zeros(1024, dtype=torch.uint8), range(size)
    for turn in range(3):
        for dtype in (torch.float32, torch.float64, torch.int32):
            for count in (4, 6):
                whole = room.view(dtype)[: count * size]
                part = torch.full((count,), rank + turn, dtype=dtype)
                dist.all_gather_into_tensor(whole, part)
                wanted = torch.arange(size).repeat_interleave(count).double() + turn
                check(whole, wanted, what="all_gather_into_tensor")
                dist.reduce_scatter_tensor(part, whole)
                check(part, torch.full((count,), size * (rank + turn)).double())
                dist.all_reduce(part)
                total = sum(size * (r + turn) for r in ranks)
                check(part, torch.full((count,), total).double(), what="all_reduce")
                part.fill_(rank)
                dist.broadcast(part, turn % size)
                check(part, torch.full((count,), turn % size).double())
                sent = (torch.arange(count * size) + rank).to(dtype)
                dist.all_to_all_single(whole, sent)
                mine = [torch.arange(count * size).chunk(size)[rank] + r for r in ranks]
                check(whole, torch.cat(mine).double(), what="all_to_all_single")
                gaps = room.view(dtype)[: 2 * count : 2]  # as long as part
                gaps.fill_(1)
                dist.all_reduce(gaps)
                check(gaps, torch.full((count,), size).double(), what="with gaps")


def all_to_all(rank: int, size: int) -> None:
    pieces = everybodys(size)
    out = torch.empty(ROWS * size, WIDTH)
    dist.all_to_all_single(out, given(rank, size).float())
    check(out, torch.cat([p.chunk(size)[rank] for p in pieces]), what="even")
    ins = [uneven(rank, r) for r in range(size)]
    outs = [uneven(r, rank) for r in range(size)]
    rows = tensor(sum(ins), WIDTH, seed=60 + rank).float()
    out = torch.empty(sum(outs), WIDTH)
    dist.all_to_all_single(out, rows, outs, ins)
    check(out, torch.cat(uneven_parts(rank, size)), what="uneven")


def all_to_all_of_uneven_lists(rank: int, size: int) -> None:
    ins = [uneven(rank, r) for r in range(size)]
    rows = tensor(sum(ins), WIDTH, seed=60 + rank).float()
    received = [torch.empty(uneven(r, rank), WIDTH) for r in range(size)]
    dist.all_to_all(received, list(torch.split(rows, ins)))
    check_all(received, uneven_parts(rank, size), what="lists")


def uneven_parts(rank: int, size: int) -> list[Tensor]:
    """Rows that ``rank`` gets from each rank in the uneven all-to-all."""
    parts = []
    for sender in range(size):
        splits = [uneven(sender, r) for r in range(size)]
        rows = tensor(sum(splits), WIDTH, seed=60 + sender)
        parts.append(torch.split(rows, splits)[rank])
    return parts


def other_types(rank: int, size: int) -> None:
    ranks = range(size)
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        mine = torch.arange(1, 20, dtype=dtype) + rank
        dist.all_reduce(mine)
        wanted = sum((torch.arange(1, 20) + r for r in ranks), torch.zeros(()))
        check(mine, wanted.double(), what=str(dtype))
    for half, rel in ((torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        mine = given(rank, size).to(half)
        dist.all_reduce(mine)
        check(mine, sum(everybodys(size), torch.zeros(())), rel=rel, what=str(half))
    whole = torch.complex(given(rank, size), given(rank, size) * 2).to(torch.complex64)
    dist.all_reduce(whole)
    total = sum(everybodys(size), torch.zeros(()))
    check_all([whole.real, whole.imag], [total, 2 * total], what="complex")
    flags = torch.tensor([rank == r for r in ranks])
    dist.broadcast(flags, size - 1)
    assert flags.tolist() == [r == size - 1 for r in ranks]


def tensors_that_are_not_contiguous(rank: int, size: int) -> None:
    """A transposed tensor is reduced in place, and what lies between stays."""
    total = sum(everybodys(size), torch.zeros(()))
    mine = given(rank, size).float().t().contiguous().t()
    dist.all_reduce(mine)
    check(mine, total, what="transposed")


def fifty_in_flight(rank: int, size: int) -> None:
    """Issued before any is waited for, which then happens in another order."""
    lengths = [1 + 997 * (i % 7) + 40_000 * (i % 11 == 0) for i in range(50)]
    tensors = [tensor(n, seed=i + 100 * rank).float() for i, n in enumerate(lengths)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    for work in reversed(works):
        assert work is not None
        work.wait()
        assert work.is_completed()
    for i, n in enumerate(lengths):
        parts = [tensor(n, seed=i + 100 * r) for r in range(size)]
        check(tensors[i], sum(parts, torch.zeros(())), what=f"number {i}")


def futures(rank: int, size: int) -> None:
    """A chain of callbacks, of which one starts another collective and waits for it."""
    mine = given(rank, size).float()
    work = cast(dist.Work, dist.all_reduce(mine, async_op=True))

    def again(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        value = done.value()[0]
        dist.all_reduce(value)
        return value

    future = cast(Any, work).get_future().then(again).then(lambda done: done.value())
    total = sum(everybodys(size), torch.zeros(()))
    check(future.wait(), size * total)


# -- coalesced ---------------------------------------------------------------------


def coalescing_manager(rank: int, size: int) -> None:
    pieces = everybodys(size)
    sums = [given(rank, size).float() * i for i in range(1, 6)]
    with _coalescing_manager():
        for each in sums:
            dist.all_reduce(each)
    total = sum(pieces, torch.zeros(()))
    check_all(sums, [total * i for i in range(1, 6)], what="all_reduce")
    gathered = [torch.empty(ROWS * size * size, WIDTH) for _ in range(3)]
    with _coalescing_manager(async_ops=True) as manager:
        for i, out in enumerate(gathered):
            dist.all_gather_into_tensor(out, given(rank, size).float() + i)
    manager.wait()
    check_all(gathered, [torch.cat(pieces) + i for i in range(3)], what="all_gather")
    scattered = [torch.empty(ROWS, WIDTH) for _ in range(3)]
    with _coalescing_manager():
        for i, out in enumerate(scattered):
            dist.reduce_scatter_tensor(out, given(rank, size).float() * (i + 1))
    mine = total.chunk(size)[rank]
    check_all(scattered, [mine * (i + 1) for i in range(3)], what="reduce_scatter")


def coalescing_manager_of_a_device(rank: int, size: int) -> None:
    """The older form, in which the group itself collects the calls."""
    mine, root = given(rank, size).float(), given(rank, size).float()
    with _coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(root, 0)
        work = world().allreduce([mine])
    work.wait()
    check(root, given(0, size), what="broadcast")
    check(mine, sum(everybodys(size), torch.zeros(())), what="all_reduce")


# -- functional --------------------------------------------------------------------


def result_of_a_functional_collective(rank: int, size: int) -> None:
    """A defect that a review found: torch wraps it, and it has no memory of its own."""
    wrapped = cast(Any, funcol).all_reduce(torch.ones(4), "sum", world())
    dist.all_reduce(wrapped)
    check(wrapped, torch.full((4,), float(size * size)))


def functional_collectives(rank: int, size: int) -> None:
    pieces, mine = everybodys(size), given(rank, size).float()
    total = sum(pieces, torch.zeros(()))
    check(now(funcol.all_reduce(mine, "sum", world())), total, what="sum")
    check(now(funcol.all_reduce(mine, "avg", world())), total / size, what="avg")
    check(mine, pieces[rank], what="the input, which stays")
    for dim in (0, 1):
        out = now(funcol.all_gather_tensor(mine, dim, world()))
        check(out, torch.cat(pieces, dim), what=f"all_gather {dim}")
    out = now(funcol.reduce_scatter_tensor(mine, "sum", 0, world()))
    check(out, total.chunk(size, 0)[rank], what="reduce_scatter")
    wide = torch.cat([mine] * size, 1)
    out = now(funcol.reduce_scatter_tensor(wide, "avg", 1, world()))
    check(out, total / size, what="reduce_scatter of columns")
    for src in range(size):
        check(now(funcol.broadcast(mine, src, world())), pieces[src], what="broadcast")
    ins = [uneven(rank, r) for r in range(size)]
    outs = [uneven(r, rank) for r in range(size)]
    rows = tensor(sum(ins), WIDTH, seed=60 + rank).float()
    out = now(funcol.all_to_all_single(rows, outs, ins, world()))
    check(out, torch.cat(uneven_parts(rank, size)), what="all_to_all")
    shift = [(r + 1) % size for r in range(size)]
    out = now(funcol.permute_tensor(mine.flatten(), shift, world()))
    check(out, pieces[(rank - 1) % size].flatten(), what="permute")


def functional_coalesced(rank: int, size: int) -> None:
    pieces = everybodys(size)
    total = sum(pieces, torch.zeros(()))
    mine = [given(rank, size).float() * i for i in (1, 2, 3)]
    outs = funcol.all_reduce_coalesced(mine, "sum", world())
    check_all([now(o) for o in outs], [total * i for i in (1, 2, 3)], what="sum")
    outs = funcol.all_gather_into_tensor_coalesced(mine, world())
    wanted = [torch.cat(pieces) * i for i in (1, 2, 3)]
    check_all([now(o) for o in outs], wanted, what="gather")
    outs = funcol.reduce_scatter_tensor_coalesced(mine, "sum", [0, 0, 0], world())
    wanted = [total.chunk(size)[rank] * i for i in (1, 2, 3)]
    check_all([now(o) for o in outs], wanted, what="scatter")


def functional_compiled(rank: int, size: int) -> None:
    def step(x: Tensor) -> Tensor:
        summed = funcol.all_reduce(x * 2, "sum", world())
        return funcol.all_gather_tensor(summed + 1, 0, world())

    torch._dynamo.reset()
    out = torch.compile(step, backend="aot_eager", fullgraph=True)(
        given(rank, size).float()
    )
    total = sum(everybodys(size), torch.zeros(()))
    check(now(out), torch.cat([2 * total + 1] * size))
    torch._dynamo.reset()
