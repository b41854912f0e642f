"""Memory: what a call needs beyond its tensor is bounded, and nothing stays behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks

TENSOR_BYTES = 1 << 30
LIMIT_BYTES = 16 << 20
"""The promise: scratch beyond the tensor, whatever its size."""
STATUS = Path("/proc/self/status")

pytestmark = pytest.mark.skipif(
    not STATUS.exists(), reason="the peak is read from Linux's /proc"
)


def memory_bytes(field: str) -> int:
    """``VmHWM`` is the peak of what is resident, ``VmRSS`` what is so now."""
    line = next(i for i in STATUS.read_text().splitlines() if i.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def growth_of(call: Callable[[], object]) -> int:
    """How far the peak of ``call`` lies above what was resident before it."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = memory_bytes("VmRSS")
    call()
    return memory_bytes("VmHWM") - before


def reduce_one_large_tensor(
    group: Group, ready: Ready, num_bytes: int, algorithm: str | None
) -> int:
    tensor = torch.full((num_bytes // 4,), float(group.rank + 1))
    group.barrier()
    grew = growth_of(lambda: group.all_reduce(tensor, algorithm=algorithm))
    ready()
    assert tensor[0] == 3
    assert tensor[-1] == 3
    return grew


@pytest.mark.parametrize(
    "transport", [pytest.param("tcp", marks=pytest.mark.slow), "shm"]
)
def test_a_gigabyte_is_reduced_with_16_megabytes_of_scratch(
    transport: str, fork_server: ForkServer
) -> None:
    """The very first call of the group: everything it will ever need is in it."""
    with spawn_ranks(
        2,
        reduce_one_large_tensor,
        TENSOR_BYTES,
        None,
        transport=transport,
        timeout_s=400,
        fork_server=fork_server,
    ) as ranks:
        for rank in ranks:
            grew = rank.result(within_s=500)
            assert grew <= LIMIT_BYTES, f"rank {rank.rank}: {grew / 2**20:.1f} MiB"


@pytest.mark.parametrize(
    ("transport", "algorithm"),
    [
        pytest.param("tcp", "ring", marks=pytest.mark.slow),
        pytest.param("tcp", "direct", marks=pytest.mark.slow),
        pytest.param("tcp", "doubling", marks=pytest.mark.slow),
        ("tcp", "halving"),
        pytest.param("tcp", "tree", marks=pytest.mark.slow),
        pytest.param("tcp", "star", marks=pytest.mark.slow),
        pytest.param("shm", "ring", marks=pytest.mark.slow),
        ("shm", "shm"),
    ],
)
def test_no_algorithm_needs_more_than_16_megabytes(
    transport: str, algorithm: str, fork_server: ForkServer
) -> None:
    with spawn_ranks(
        3,  # with four, a quarter of the tensor in scratch would go unnoticed
        every_operation_grows_little,
        63 << 20,
        algorithm,
        transport=transport,
        timeout_s=400,
        fork_server=fork_server,
    ) as ranks:
        for rank in ranks:
            for name, grew in rank.result(within_s=500).items():
                text = f"{name} at rank {rank.rank}: {grew / 2**20:.1f} MiB"
                assert grew <= LIMIT_BYTES, text


def every_operation_grows_little(
    group: Group, ready: Ready, num_bytes: int, algorithm: str
) -> dict[str, int]:
    """Growth by operation; out of place where that is possible."""
    count = num_bytes // 4
    source, out = torch.ones(count), torch.zeros(count)
    part = torch.ones(count // group.size)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce out of place": lambda: group.all_reduce(
            source, out=out, algorithm=algorithm
        ),
        "broadcast": lambda: group.broadcast(out, 1),
        "reduce": lambda: group.reduce(source, 1),
        "all_gather": lambda: group.all_gather(out, part),
        "reduce_scatter": lambda: group.reduce_scatter(part, source),
        "all_to_all": lambda: group.all_to_all(out, source),
        "gather": lambda: group.gather(out if group.rank == 1 else None, part, 1),
        "scatter": lambda: group.scatter(part, out if group.rank == 1 else None, 1),
    }
    if algorithm not in ("ring", "shm"):
        calls = {k: v for k, v in calls.items() if k.startswith("all_reduce")}
    ready()
    grew = {}
    for name, call in calls.items():
        group.barrier()
        grew[name] = growth_of(call)
    return grew


@pytest.mark.parametrize(
    "transport", [pytest.param("tcp", marks=pytest.mark.slow), "shm"]
)
def test_repeated_calls_cost_no_memory_that_stays(
    transport: str, fork_server: ForkServer
) -> None:
    with spawn_ranks(
        2, repeat_calls, transport=transport, timeout_s=400, fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            grew = rank.result(within_s=500)
            assert grew < 1 << 20, f"rank {rank.rank} grew by {grew} bytes"


def repeat_calls(group: Group, ready: Ready) -> int:
    """What 100 rounds of calls added to what was resident after the first ones."""
    tensors = [torch.ones(n) for n in (1, 1000, 30_000, 400_000)]
    outs = [torch.ones(n) for n in (2, 2000, 60_000, 800_000)]
    boxes = [tensor.clone() for tensor in tensors]
    peer = 1 - group.rank

    def round_() -> None:
        works = []
        for tensor, out, box in zip(tensors, outs, boxes, strict=True):
            group.all_reduce(tensor, "max")
            group.broadcast(tensor, 0)
            group.all_gather(out, tensor)
            group.sendrecv(tensor, peer, box, peer)
            works.append(group.all_reduce(tensor, "max", async_op=True))
        for work in works:
            work.wait()

    for _ in range(20):
        round_()
    ready()
    gc.collect()
    before = memory_bytes("VmRSS")
    for _ in range(100):
        round_()
    gc.collect()
    return memory_bytes("VmRSS") - before


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_group_keeps_no_tensor_after_the_call(
    transport: str, fork_server: ForkServer
) -> None:
    with spawn_ranks(
        2, drop_tensors, transport=transport, timeout_s=400, fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            assert rank.result(within_s=200) == {}, f"kept by rank {rank.rank}"


def drop_tensors(group: Group, ready: Ready) -> dict[str, int]:
    """Return the calls after which somebody still refers to the tensor's memory.

    The memory is an object of ours, whose references can be counted. The resident
    memory of the process tells nothing where the allocator keeps freed blocks, as
    torch's does on ARM.
    """
    peer = 1 - group.rank
    ready()
    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "all_reduce": group.all_reduce,
        "ring": lambda t: group.all_reduce(t, algorithm="ring"),
        "async": lambda t: group.all_reduce(t, async_op=True).wait(),
        "broadcast": lambda t: group.broadcast(t, 0),
        "message": lambda t: (
            group.send(t, peer) if group.rank == 0 else group.recv(t, peer)
        ),
    }
    kept = {}
    for name, call in calls.items():
        memory = bytearray(1 << 20)
        alone = sys.getrefcount(memory)
        tensor = torch.frombuffer(memory, dtype=torch.float32)
        assert sys.getrefcount(memory) > alone
        call(tensor)
        del tensor
        gc.collect()
        if sys.getrefcount(memory) > alone:
            kept[name] = sys.getrefcount(memory) - alone
    return kept
