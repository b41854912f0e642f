"""Programs that tests start with mpirun or srun, by name, one after the other."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import ringleader
from ringleader.engine import waiter
from ringleader.testing.link_contract import LEFT, RIGHT, check_link
from ringleader.transport.link import Link
from ringleader.transport.mpi import library
from ringleader.transport.mpi.link import MpiLink
from ringleader.transport.mpi.poller import poller

LIMIT_S = 60.0
STOPPED_S = 8.0
FOREVER_S = 3600.0


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # one piece: the ranks share a pipe


def contract() -> None:
    """The promises of every link, between two ends in this process."""
    mpi = library.load()
    comm = mpi.COMM_SELF.Dup()
    tags = itertools.count(100)

    def make_pair() -> tuple[Link, Link]:
        a, b = next(tags), next(tags)
        left = MpiLink(mpi, comm, RIGHT, (0, a, b), poller)
        return left, MpiLink(mpi, comm, LEFT, (0, b, a), poller)

    check_link(make_pair)
    say("the contract holds")


def collectives() -> None:
    """Values of all operations over MPI, in a group, sub-groups and its successor."""
    with ringleader.group(transport="mpi", timeout_s=LIMIT_S) as group:
        assert "mpi" in repr(group), group
        check_collectives(group)
        check_messages(group)
        try:
            group.all_reduce(torch.zeros(2 + group.rank % 2))
        except ringleader.CallMismatch as exc:
            say(f"rank {group.rank}: {exc}")
    with ringleader.group(transport="mpi", timeout_s=LIMIT_S) as again:
        again.barrier()
        say(f"rank {again.rank} of {again.size} is done")


def aborted() -> None:
    """An abort on the last rank wakes the waiting calls of the others.

    They sleep for ever if nothing wakes them, and then the whole job is late.
    """
    with ringleader.group(transport="mpi", timeout_s=LIMIT_S) as group:
        source, out = torch.ones(400_009), torch.empty(400_009)
        nap_s, waiter.NAP_S = waiter.NAP_S, FOREVER_S
        if group.rank == group.size - 1:
            time.sleep(0.2)  # most likely the others sleep by then
            group.abort("enough")
        else:
            try:
                group.all_reduce(source, out=out, timeout_s=FOREVER_S)
            except ringleader.GroupAborted as exc:
                say(f"rank {group.rank} was woken: {exc}")
        waiter.NAP_S = nap_s
        assert bool((source == 1).all()), "the input was written"


def check_collectives(group: ringleader.Group) -> None:
    rank, size = group.rank, group.size
    total = sum(range(size))
    for count in (0, 1, 7, 40_000, 700_001):
        tensor = torch.arange(count, dtype=torch.float64) + rank
        group.all_reduce(tensor)
        expected = torch.arange(count, dtype=torch.float64) * size + total
        assert torch.equal(tensor, expected)
    for root in range(size):
        tensor = torch.full((5,), float(rank))
        group.broadcast(tensor, src=root)
        assert (tensor == root).all()
        tensor = torch.full((3,), float(rank))
        group.reduce(tensor, dst=root)
        assert rank != root or (tensor == total).all()
    out = torch.zeros(size * 2)
    group.all_gather(out, torch.full((2,), float(rank)))
    assert out.tolist() == [r // 2 for r in range(2 * size)]
    group.barrier()


def check_messages(group: ringleader.Group) -> None:
    """Messages around a circle, then twice the same sub-group."""
    rank, size = group.rank, group.size
    out = torch.zeros(200_000)
    following, before = (rank + 1) % size, (rank - 1) % size
    group.sendrecv(torch.full_like(out, float(rank)), following, out, before)
    assert (out == before).all()
    for _ in range(2):
        pair = group.subgroup([size - 1, 0], timeout_s=LIMIT_S)
        if pair is not None:
            with pair:
                tensor = torch.ones(3)
                pair.all_reduce(tensor)
                assert (tensor == 2).all()


def backend() -> None:
    """The torch backend, with no variable of torch set by hand."""
    dist.init_process_group("ringleader")
    tensor = torch.full((4,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    part = dist.new_group([0, dist.get_world_size() - 1])
    if dist.get_rank() in (0, dist.get_world_size() - 1):
        dist.all_reduce(tensor, group=part)
    local = dist.get_node_local_rank()
    rank, size = dist.get_rank(), dist.get_world_size()
    say(f"rank {rank} of {size}, {local} here: {tensor.tolist()}")
    dist.destroy_process_group()


def groups() -> None:
    """Two groups, one after the other, while torch's may be open."""
    for turn in range(2):
        with ringleader.group(timeout_s=LIMIT_S) as group:
            tensor = torch.full((3,), float(group.rank + 1))
            group.all_reduce(tensor)
            say(f"group {turn}, rank {group.rank} of {group.size}: {tensor.tolist()}")


def stopped() -> None:
    """Rank 1 stops during training: the others name it within the deadline.

    Rank 2 waits for rank 0 only. It hears that rank 0 waits for rank 1 once that has
    waited for 0.2 s, so the deadline is far longer than a busy machine needs for the
    bytes of the call.
    """
    group = ringleader.group(transport="mpi", timeout_s=LIMIT_S)
    pid = torch.tensor([os.getpid()], dtype=torch.int64)
    group.broadcast(pid, src=1)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1.0)
        group.close()
        return
    start_s = time.monotonic()
    try:
        group.all_reduce(torch.ones(300_001), timeout_s=STOPPED_S)
    except ringleader.PeerError as exc:
        is_late = time.monotonic() - start_s > LIMIT_S / 2
        say(f"rank {group.rank} {'late' if is_late else 'in time'}: {exc}")
    group.close()
    if group.rank == 0:
        time.sleep(5.0)  # rank 2 has its error as well
        os.kill(int(pid), signal.SIGCONT)


def finalized() -> None:
    """The program ends MPI by itself, with one group closed and one open."""
    with ringleader.group(transport="mpi", timeout_s=LIMIT_S) as closed:
        closed.barrier()
    left_open = ringleader.group(transport="mpi", timeout_s=LIMIT_S)
    left_open.barrier()
    library.load().Finalize()
    say("MPI is finalized")


def absent() -> None:
    """The last rank never forms the group."""
    mpi = library.load()
    rank, size = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    mpi.COMM_WORLD.Barrier()
    if rank < size - 1:
        try:
            ringleader.group(transport="mpi", timeout_s=1.0)
        except ringleader.PeerUnreachable as exc:
            say(f"rank {rank}: {exc}")
    mpi.COMM_WORLD.Barrier()
    with ringleader.group(transport="mpi", timeout_s=LIMIT_S) as group:
        group.barrier()
        say(f"rank {rank} is in a group of {group.size}")


PROGRAMS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        absent,
        contract,
        collectives,
        aborted,
        backend,
        groups,
        stopped,
        finalized,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        PROGRAMS[name]()
