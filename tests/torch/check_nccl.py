"""NCCL beside ringleader and inside its hosts, on a real GPU.

Two processes share one GPU. NCCL refuses two ranks on one device, so its groups have
one rank each: communicators, streams and values are real, transfers between GPUs are
not checked. Needs torch and numpy only:

    PYTHONPATH=src python -m tests.torch.check_nccl

``check_nccl gloo`` runs the same checks on CPU tensors, with Gloo in place of NCCL.
"""

# ruff: noqa: T201 - a program that reports what it does

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

RANKS = 2
LIMIT_S = 120.0
COUNTS = (1, 1000, 3_000_001)
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX}


class Rank:
    """One rank: its ringleader group of all ranks, and a neighbour group of itself."""

    def __init__(self, rank: int, other: str) -> None:
        self.rank = rank
        self.other = other
        self.device = (
            torch.device("cuda", 0) if other == "nccl" else torch.device("cpu")
        )

    def groups_of_one(self, backend: str) -> Any:  # noqa: ANN401 - a ProcessGroup
        """A group of this rank alone; torch wants all ranks to make all groups."""
        made = [dist.new_group([r], backend=backend) for r in range(RANKS)]
        return made[self.rank]

    def values(self, count: int, rank: int | None = None) -> Tensor:
        """Different by place and rank, and so small that 16 bits hold their sums."""
        at = self.rank if rank is None else rank
        return ((torch.arange(count) * 7 + at * 13) % 31).double() - 15

    def exact(self, count: int, op: str, dtype: torch.dtype) -> Tensor:
        every = torch.stack([self.values(count, r) for r in range(RANKS)])
        if op == "max":
            return every.amax(0)
        total = every.sum(0) if op == "sum" else every.mean(0)
        return total if dtype.is_floating_point else total.trunc()

    # -- checks --------------------------------------------------------------------

    def the_backend_is_reported_as_available(self) -> None:
        from ringleader.backend.availability import backends

        info = backends()[self.other]
        assert info.available, str(info)

    def both_backends_in_one_process_mean_the_same(self) -> None:
        """Sum and mean of the same tensor, by turns and in flight together."""
        theirs, ours = self.groups_of_one(self.other), self.groups_of_one("ringleader")
        for dtype in DTYPES:
            for name, op in OPS.items():
                if self.other == "gloo" and name == "mean":
                    continue  # Gloo has none
                results = []
                for group in (theirs, ours):
                    tensor = self.values(1000).to(self.device, dtype)
                    dist.all_reduce(tensor, op, group=group)
                    results.append(tensor.cpu())
                assert torch.equal(*results), f"{dtype} {name}"
        whole = self.values(300_001).to(self.device)
        alone = self.values(300_001).to(self.device)
        works = [
            dist.all_reduce(whole, async_op=True),
            dist.all_reduce(alone, group=theirs, async_op=True),
        ]
        for work in works:
            assert work is not None
            work.wait()
        assert torch.equal(whole.cpu(), self.exact(300_001, "sum", torch.float64))
        assert torch.equal(alone.cpu(), self.values(300_001))
        dist.all_reduce(whole, group=theirs)  # the result of one by the other
        dist.all_reduce(whole)
        expected = RANKS * self.exact(300_001, "sum", torch.float64)
        assert torch.equal(whole.cpu(), expected)

    def a_device_map_names_both(self) -> None:
        """From torch 2.14 on each device gets its backend; before, all get ours."""
        self.use_map(self.groups_of_one(f"cpu:ringleader,cuda:{self.other}"))

    def init_process_group_takes_the_map(self) -> None:
        """The last check: it replaces the group of both ranks by one of each."""
        dist.destroy_process_group()
        name = f"cpu:ringleader,cuda:{self.other}"
        dist.init_process_group(name, store=HashStore(), rank=0, world_size=1)
        self.use_map(dist.group.WORLD)
        dist.destroy_process_group()

    def use_map(self, group: Any) -> None:  # noqa: ANN401
        """Check what a group of this rank says of its devices, and use both."""
        from ringleader.backend.device_backend import can_subclass

        told = dist.get_backend_config(group)
        cuda = self.other if can_subclass() else "ringleader"
        assert told == f"cpu:ringleader,cuda:{cuda}", told
        for device in {torch.device("cpu"), self.device}:
            for dtype in (torch.float32, torch.int64):
                for op in OPS.values():
                    tensor = self.values(1000).to(device, dtype)
                    dist.all_reduce(tensor, op, group=group)
                    assert torch.equal(tensor.cpu(), self.values(1000).to(dtype))

    def make_layer(self, group: Any) -> Any:  # noqa: ANN401
        """Give ``group`` an inner layer in which every rank is a host of its own."""
        from ringleader.backend.intra_host import IntraHostLayer

        hosts = [[rank] for rank in range(RANKS)]
        group.layer = IntraHostLayer.of_hosts(
            self.other, group.group, group.get_group_store(), hosts
        )
        return group.layer

    def it_is_the_inner_layer_of_a_hierarchy(self) -> None:
        group: Any = dist.new_group(backend="ringleader")
        layer = self.make_layer(group)
        for dtype in DTYPES:
            for name, op in OPS.items():
                for count in COUNTS:
                    tensor = self.values(count).to(self.device, dtype)
                    assert layer.serves(tensor, name)
                    dist.all_reduce(tensor, op, group=group)
                    exact = self.exact(count, name, dtype)
                    assert torch.equal(tensor.cpu().double(), exact), f"{dtype} {name}"
        for root in range(RANKS):
            tensor = self.values(300_001).to(self.device)
            dist.broadcast(tensor, root, group=group)
            assert torch.equal(tensor.cpu(), self.values(300_001, root))
        tensor = self.values(300_001).to(self.device, torch.float32)
        lost = torch.full_like(tensor, 77.0)
        group.allreduce_coded(tensor, "int8", op="mean", error_out=lost).wait()
        off = tensor.cpu().double() - self.exact(300_001, "mean", torch.float64)
        assert off.abs().max() < 2 * 15 / 127
        assert lost.abs().max() < 2 * 15 / 127
        dist.destroy_process_group(group)

    def its_streams_are_in_order(self) -> None:
        """Tensors are filled after work that is still to be done, and read at once."""
        group: Any = dist.new_group(backend="ringleader")
        self.make_layer(group)
        count, side = 3_000_000, 4000 if self.other == "nccl" else 200
        heavy = torch.randn(side, side, device=self.device)
        filled = self.values(count).to(self.device)
        for turn in range(4):
            tensor = torch.full_like(filled, -1.0)
            for _ in range(10):
                heavy @ heavy
            tensor.copy_(filled).add_(turn)
            work = dist.all_reduce(tensor, group=group, async_op=True)
            assert work is not None
            work.wait()
            seen = tensor.clone()
            tensor.fill_(-2)
            exact = self.exact(count, "sum", torch.float64) + RANKS * turn
            assert torch.equal(seen.cpu(), exact), f"turn {turn}"
        dist.destroy_process_group(group)


CHECKS = (
    "the_backend_is_reported_as_available",
    "both_backends_in_one_process_mean_the_same",
    "a_device_map_names_both",
    "it_is_the_inner_layer_of_a_hierarchy",
    "its_streams_are_in_order",
    "init_process_group_takes_the_map",
)


def live(rank: int, other: str, store: str, pipe: Connection) -> None:
    """Run one rank; report each check, or what went wrong."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from ringleader.backend.register import register

    register()
    try:
        checks = Rank(rank, other)
        if other == "nccl":
            torch.cuda.set_device(0)
        dist.init_process_group(
            "ringleader",
            init_method=Path(store).as_uri(),
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=LIMIT_S),
        )
        for name in CHECKS:
            started_s = time.monotonic()
            getattr(checks, name)()
            pipe.send((f"{name}: {time.monotonic() - started_s:.1f} s", ""))
    except BaseException:  # noqa: BLE001 - told to the parent
        pipe.send(("rank " + str(rank), traceback.format_exc()))
        return
    pipe.send(None)
    pipe.recv()  # until both have finished


def main(other: str = "nccl") -> int:
    """Return 0 if every check holds on both ranks."""
    # CUDA does not survive a fork; without it, a fork need not import torch.
    context: Any = multiprocessing.get_context("spawn" if other == "nccl" else "fork")
    print(f"torch {torch.__version__}, {other}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            arguments = (rank, other, f"{folder}/store", theirs)
            processes.append(context.Process(target=live, args=arguments, daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            finished = [follow(rank, pipe) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.kill()
                process.join()
    print("all checks hold on both ranks" if all(finished) else "FAILED", flush=True)
    return 0 if all(finished) else 1


def follow(rank: int, pipe: Connection) -> bool:
    """Print what a rank reports; return whether it did all of its checks."""
    num_checked = 0
    try:
        while pipe.poll(2 * LIMIT_S):
            said = pipe.recv()
            if said is None:
                return num_checked == len(CHECKS)
            what, error = said
            print(f"rank {rank}: {what}", error and f"FAILED\n{error}", flush=True)
            if error:
                return False
            num_checked += 1
    except EOFError:
        print(f"rank {rank} died", flush=True)
        return False
    print(f"rank {rank} says nothing", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
