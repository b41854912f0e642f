"""Groups within groups, messages between two ranks, objects, and gloo beside us."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from tests.kit.reference import check, check_all, tensor


def mine(rank: int) -> Tensor:
    return tensor(50, seed=rank).float()


def total(ranks: list[int]) -> Tensor:
    return torch.stack([tensor(50, seed=r) for r in ranks]).sum(0)


def reduced(rank: int, group: dist.ProcessGroup | None) -> Tensor:
    value = mine(rank)
    dist.all_reduce(value, group=group)
    return value


def object_collectives(rank: int, size: int) -> None:
    def thing(r: int) -> dict[str, Any]:
        return {"rank": r, "text": "x" * 1000 * r, "list": list(range(r))}

    everything = [thing(r) for r in range(size)]
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, thing(rank))
    assert gathered == everything
    for root in range(size):
        at_root: list[Any] | None = [None] * size if rank == root else None
        dist.gather_object(thing(rank), at_root, dst=root)
        assert at_root == (everything if rank == root else None)
        shared: list[Any] = [thing(root), 7] if rank == root else [None, None]
        dist.broadcast_object_list(shared, src=root)
        assert shared == [thing(root), 7]
        got: list[Any] = [None]
        dist.scatter_object_list(got, everything if rank == root else None, src=root)
        assert got == [thing(rank)]
    if rank == 0:
        dist.send_object_list([thing(5), "end"], dst=size - 1)
    elif rank == size - 1:
        heard: list[Any] = [None, None]
        dist.recv_object_list(heard, src=0)
        assert heard == [thing(5), "end"]


def new_groups(rank: int, size: int) -> None:
    """All, all but one, one alone, and the same ranks twice; made by everybody."""
    for left_out in range(size):
        ranks = [r for r in range(size) if r != left_out]
        group = dist.new_group(ranks)
        if rank == left_out:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            continue
        assert isinstance(group, dist.ProcessGroup)
        assert dist.get_rank(group) == ranks.index(rank)
        check(reduced(rank, group), total(ranks), what=f"without {left_out}")
        value = mine(rank)
        dist.broadcast(value, src=ranks[-1], group=group)
        check(value, tensor(50, seed=ranks[-1]), what=f"broadcast without {left_out}")
    twins = [dist.new_group(list(range(size))) for _ in range(2)]
    values = [mine(rank) * (i + 1) for i in range(2)]
    works = [
        dist.all_reduce(value, group=group, async_op=True)
        for value, group in zip(values, twins, strict=True)
    ]
    for work in reversed(works):
        assert work is not None
        work.wait()
    everybody = total(list(range(size)))
    check_all(values, [everybody, 2 * everybody], what="twins")


# torch does not give their types.
subgroups: Any = dist.new_subgroups
by_enumeration: Any = dist.new_subgroups_by_enumeration


def new_subgroups(rank: int, size: int) -> None:
    if size % 2 == 0:
        own, groups = subgroups(2)
        first = rank - rank % 2
        check(reduced(rank, own), total([first, first + 1]))
        assert len(groups) == size // 2
    own, groups = subgroups(1)
    check(reduced(rank, own), total([rank]))
    own, _ = by_enumeration([[0], list(range(1, size))])
    check(reduced(rank, own), total([0] if rank == 0 else list(range(1, size))))
    if size == 4:
        # Both halves form groups at the same time, and torch numbers them alike.
        halves = [[0, 2], [1, 3]]
        half, _ = by_enumeration(halves)
        own, _ = subgroups(2, group=half)
        check(reduced(rank, own), total(halves[rank % 2]))
        own, _ = subgroups(1, group=half)
        check(reduced(rank, own), total([rank]))


def device_mesh(rank: int, size: int) -> None:
    everybody = total(list(range(size)))
    line = init_device_mesh("cpu", (size,), mesh_dim_names=("all",))
    check(reduced(rank, line.get_group()), everybody)
    rows, columns = (2, 2) if size == 4 else (1, size)
    grid = init_device_mesh("cpu", (rows, columns), mesh_dim_names=("row", "column"))
    row, column = divmod(rank, columns)
    assert tuple(grid.get_coordinate() or ()) == (row, column)
    above = [r * columns + column for r in range(rows)]
    beside = [row * columns + c for c in range(columns)]
    check(reduced(rank, grid.get_group("row")), total(above))
    check(reduced(rank, grid["column"].get_group()), total(beside))
    check(reduced(rank, grid._flatten("both").get_group()), everybody)


def batch_isend_irecv(rank: int, size: int) -> None:
    """Around the ring in both directions at once, big and small."""
    left, right = (rank - 1) % size, (rank + 1) % size
    for length in (1, 100_000):
        out = tensor(length, seed=rank).float()
        from_left, from_right = torch.empty(length), torch.empty(length)
        ops = [
            dist.P2POp(dist.isend, out, right, tag=1),
            dist.P2POp(dist.isend, out * 2, left, tag=2),
            dist.P2POp(dist.irecv, from_right, right, tag=2),
            dist.P2POp(dist.irecv, from_left, left, tag=1),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        check(from_left, tensor(length, seed=left), what="from the left")
        check(from_right, 2 * tensor(length, seed=right), what="from the right")


def messages(rank: int, size: int) -> None:
    """Tags are taken out of order, and a message from anyone says who sent it."""
    if rank == 0:
        for sender in range(1, size):
            second, first = torch.empty(10), torch.empty(10)
            dist.recv(second, sender, tag=2)
            dist.recv(first, sender, tag=1)
            check_all(
                [first, second],
                [tensor(10, seed=sender), 2 * tensor(10, seed=sender)],
                what=f"from {sender}",
            )
        senders = []
        for _ in range(1, size):
            value = torch.empty(10)
            sender = dist.recv(value, tag=3)
            check(value, 3 * tensor(10, seed=sender), what=f"from anyone: {sender}")
            senders.append(sender)
        assert sorted(senders) == list(range(1, size))
    else:
        value = tensor(10, seed=rank).float()
        works = [dist.isend(value * tag, 0, tag=tag) for tag in (1, 2)]
        for work in works:
            assert work is not None
            work.wait()
        dist.send(value * 3, 0, tag=3)


def gloo_beside(rank: int, size: int) -> None:
    """Two backends in one process, with calls of both in flight."""
    gloo = dist.new_group(backend="gloo")
    values = [mine(rank) * (i + 1) for i in range(10)]
    works = [
        dist.all_reduce(value, group=gloo if i % 2 else None, async_op=True)
        for i, value in enumerate(values)
    ]
    for work in works:
        assert work is not None
        work.wait()
    everybody = total(list(range(size)))
    check_all(values, [everybody * (i + 1) for i in range(10)])
    assert isinstance(gloo, dist.ProcessGroup)
    assert dist.get_backend(gloo) == "gloo"


def monitored_barrier(rank: int, size: int) -> None:
    """Everybody comes; then one does not, and the others learn who."""
    group: Any = dist.new_group()
    for _ in range(3):
        group.monitored_barrier(timedelta(seconds=60))
    if rank != size - 1:
        start_s = time.monotonic()
        text = ""
        try:
            group.monitored_barrier(timedelta(seconds=5))
        except Exception as exc:  # noqa: BLE001 - its class is the backend's choice
            text = str(exc).lower()
        assert text, "the barrier let go though a rank was missing"
        assert rank != 0 or f"rank {size - 1}" in text, text
        assert time.monotonic() - start_s < 60
    dist.barrier()


def monitored_barrier_by_its_public_name(rank: int, size: int) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=60))
