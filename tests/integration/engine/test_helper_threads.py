"""Helper threads in shared memory give the values that one thread gives."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from math import inf
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from ringleader.collectives.helper_threads import RankCores
from ringleader.deadline import Deadline
from ringleader.engine.shared_memory.helpers import HELPED_BYTES
from ringleader.errors import GroupAborted, RingleaderError
from ringleader.groups import share_cores
from ringleader.groups.group import Group, handle_of
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.transport import crowded_cores
from ringleader.transport.crowded_cores import Rest

HELPERS = 2
ENV = {"RINGLEADER_HELPER_THREADS": str(HELPERS)}
WITHIN_S = 240.0
"""On two cores that others use, too, teams of threads wait long for each other."""
CASES = [
    (torch.float32, "sum", 4),
    (torch.float64, "mean", 0),
    (torch.bfloat16, "mean", 3),
    (torch.float16, "sum", 1),
    (torch.uint8, "sum", 5),
    (torch.int64, "mean", 0),
    (torch.float32, "max", 0),
]
"""Dtype, reduction, and elements by which the tensor is off the beginning of its
memory; the last two stay on one thread."""


def numbers(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Small numbers that differ by rank and position: sums are exact."""
    return ((torch.arange(count) * 7 + rank * 3) % 5).to(dtype)


def expected(size: int, count: int, dtype: torch.dtype, op: str) -> Tensor:
    rows = torch.stack([numbers(r, count, torch.int64) for r in range(size)])
    if op == "max":
        return rows.amax(0).to(dtype)
    if op == "sum":
        return rows.sum(0).to(dtype)
    if not dtype.is_floating_point:
        return torch.div(rows.sum(0), size, rounding_mode="trunc").to(dtype)
    return (rows.sum(0).double() / size).to(dtype)


def count_of(group: Group, dtype: torch.dtype, num_parts: int = 1) -> int:
    """An odd length of which each rank has a little more than ``num_parts`` parts."""
    shared = handle_of(group).executor.shared
    assert shared is not None
    part_bytes = HELPED_BYTES
    if num_parts > 1:
        part_bytes = shared.arena.geometry.helped_part_bytes(HELPERS + 1)
    return num_parts * group.size * part_bytes // dtype.itemsize + 4099


def check_all_reduce(
    group: Group, dtype: torch.dtype, op: str, off: int, num_parts: int = 1
) -> None:
    count = count_of(group, dtype, num_parts)
    memory = torch.zeros(off + count, dtype=dtype)
    tensor = memory[off:]
    tensor.copy_(numbers(group.rank, count, dtype))
    group.all_reduce(tensor, op, async_op=num_parts > 1).wait()
    right = expected(group.size, count, dtype, op)
    assert torch.equal(tensor, right), f"{dtype} {op}"
    assert not memory[:off].any(), "written before its beginning"


def check_scatter_and_gather(group: Group) -> None:
    size, rank, unit = group.size, group.rank, HELPED_BYTES // 4
    lengths = [unit + 17 * r for r in range(size)]
    sources = list(numbers(rank, sum(lengths), torch.float32).split_with_sizes(lengths))
    out = torch.empty(lengths[rank])
    group.reduce_scatter(out, sources)
    whole = expected(size, sum(lengths), torch.float32, "sum")
    assert torch.equal(out, whole.split_with_sizes(lengths)[rank]), "reduce_scatter"
    outs = [torch.empty(length) for length in lengths]
    group.all_gather(outs, out)
    assert torch.equal(torch.cat(outs), whole), "all_gather"


def check_copies(group: Group) -> None:
    """Of more bytes than all slots of a rank hold, which are larger with helpers."""
    shared = handle_of(group).executor.shared
    assert shared is not None
    geometry = shared.arena.geometry
    slot_bytes = geometry.helped_slot_bytes(HELPERS + 1)
    assert slot_bytes > geometry.slot_bytes
    size, rank, count = group.size, group.rank, 5 * slot_bytes + 1
    part, whole = (
        numbers(rank, count, torch.uint8),
        torch.cat([numbers(r, count, torch.uint8) for r in range(size)]),
    )
    for _ in range(2):  # the second one is prepared
        found = torch.empty(size * count, dtype=torch.uint8)
        group.all_gather(found, part)
        assert torch.equal(found, whole), "all_gather"
    parts = list(whole.split_with_sizes([count] * size)) if rank == 1 else None
    outs = [torch.empty_like(part) for _ in range(size)]
    group.gather(outs if rank == 1 else None, part, 1)
    assert rank != 1 or torch.equal(torch.cat(outs), whole), "gather"
    group.scatter(outs[0], parts, 1)
    assert torch.equal(outs[0], part), "scatter"
    tensor = numbers(rank, count, torch.uint8)
    group.broadcast(tensor, 1)
    assert torch.equal(tensor, numbers(1, count, torch.uint8)), "broadcast"
    sent = [numbers(rank + 10 * p, count, torch.uint8) for p in range(size)]
    got = [torch.empty(count, dtype=torch.uint8) for _ in range(size)]
    group.all_to_all(got, sent)
    for peer in range(size):
        right = numbers(peer + 10 * rank, count, torch.uint8)
        assert torch.equal(got[peer], right), "all_to_all"


def compute_unlike(group: Group, _: Ready) -> None:
    """One rank has helpers, which are busy on the other."""
    shared = handle_of(group).executor.shared
    assert shared is not None
    assert shared._helpers is not None
    shared._helpers._is_computing = lambda: group.rank == 1
    check_all_reduce(group, torch.float32, "sum", 1, num_parts=3)
    check_scatter_and_gather(group)
    check_copies(group)


def test_ranks_with_and_without_free_helpers_agree(fork_server: ForkServer) -> None:
    with spawn_ranks(
        2,
        compute_unlike,
        transport="shm",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
        env=ENV,
    ) as ranks:
        for rank in ranks:
            rank.result(within_s=WITHIN_S)


def check_modes(group: Group) -> None:
    """Views that were cut in inference mode are used again outside of it."""
    tensor = torch.ones(count_of(group, torch.float32))
    with torch.inference_mode():
        group.all_reduce(tensor)
    group.all_reduce(tensor)
    assert bool((tensor == group.size**2).all())


def compute(group: Group, _: Ready) -> tuple[int, int, int]:
    """Return the threads of this process before, after, and torch's at the end."""
    crowded_cores.LATE_S = inf  # here others use the cores, and yet helpers never rest
    before = len(os.listdir("/proc/self/task"))
    for dtype, op, off in CASES:
        check_all_reduce(group, dtype, op, off)
    after = len(os.listdir("/proc/self/task"))
    check_all_reduce(group, torch.float32, "sum", 1, num_parts=3)
    check_scatter_and_gather(group)
    check_copies(group)
    check_modes(group)
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [torch.get_num_threads()], "later threads of the program changed"
    return before, after, torch.get_num_threads()


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_helpers_give_the_right_values(size: int, fork_server: ForkServer) -> None:
    with spawn_ranks(
        size,
        compute,
        transport="shm",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
        env=ENV,
    ) as ranks:
        found = [rank.result(within_s=WITHIN_S) for rank in ranks]
    for before, after, torch_threads in found:
        assert after >= before + HELPERS, "no helper has worked"
        assert torch_threads == 1, "the program's own number of threads changed"


def compute_while_helpers_rest(group: Group, _: Ready) -> tuple[int, int]:
    """Rank 1 is late in every helped call; return torch's threads, and the rests."""
    shared = handle_of(group).executor.shared
    assert shared is not None
    assert shared._helpers is not None
    crowded_cores.LATE_S = 0.0 if group.rank == 1 else inf
    crowded_cores.SHORTEST_REST_S = WITHIN_S  # it is not over before they are asked
    num_rests = 0
    for num_parts in (1, 3, 3):
        shared._helpers._rest = Rest()
        check_all_reduce(group, torch.float32, "sum", 1, num_parts=num_parts)
        check_scatter_and_gather(group)
        num_rests += not shared._helpers.are_free()
    return torch.get_num_threads(), num_rests


def test_a_call_goes_on_alone_when_helpers_are_late(fork_server: ForkServer) -> None:
    with spawn_ranks(
        2,
        compute_while_helpers_rest,
        transport="shm",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
        env={"RINGLEADER_HELPER_THREADS": "1"},
    ) as ranks:
        found = [rank.result(within_s=WITHIN_S) for rank in ranks]
    assert found == [(1, 0), (1, 3)]


def compute_until_aborted(group: Group, _: Ready) -> tuple[str, int]:
    """Return the error and torch's number of threads after it."""
    tensor = torch.ones(count_of(group, torch.float32))
    group.all_reduce(tensor)
    if group.rank == 0:
        threading.Thread(target=lambda: group.abort("enough")).start()
    try:
        while True:
            group.all_reduce(tensor)
    except RingleaderError as error:
        return type(error).__name__, torch.get_num_threads()


def test_an_abort_gives_the_threads_back(fork_server: ForkServer) -> None:
    with spawn_ranks(
        2,
        compute_until_aborted,
        transport="shm",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
        env=ENV,
    ) as ranks:
        found = [rank.result(within_s=WITHIN_S) for rank in ranks]
    assert found == [(GroupAborted.__name__, 1)] * 2


def find_helpers(group: Group, _: Ready) -> bool:
    shared = handle_of(group).executor.shared
    assert shared is not None
    return shared.has_helpers


@pytest.mark.parametrize(("count", "has_helpers"), [("0", False), ("1", True)])
def test_helpers_can_be_forbidden_and_forced(
    count: str, has_helpers: bool, fork_server: ForkServer
) -> None:
    env = {"RINGLEADER_HELPER_THREADS": count}
    with spawn_ranks(
        2,
        find_helpers,
        transport="shm",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
        env=env,
    ) as ranks:
        assert [r.result(within_s=WITHIN_S) for r in ranks] == [has_helpers] * 2


def host_of(cores: int) -> Callable[[int], RankCores]:
    """What a rank on a host of so many cores says about itself."""

    def here(num_local: int) -> RankCores:
        return RankCores(
            cores=frozenset(range(cores)),
            quota=inf,
            num_local=num_local,
            torch_threads=1,
            asked=0,
            can_help=True,
        )

    return here


def find_idle_core(group: Group, _: Ready) -> list[bool]:
    """Share the cores of hosts of several sizes, as a new group does."""
    shared = handle_of(group).executor.shared
    assert shared is not None
    found = []
    for cores in (16, 2):
        with patch.object(share_cores, "here", host_of(cores)):
            share_cores.share_cores(group, group.size, Deadline.after(WITHIN_S))
        found.append(shared.arena.has_idle_core)
    return found


def test_ranks_learn_whether_they_have_a_core_to_wait_on(
    fork_server: ForkServer,
) -> None:
    with spawn_ranks(
        2,
        find_idle_core,
        transport="shm",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
    ) as ranks:
        found = [rank.result(within_s=WITHIN_S) for rank in ranks]
    assert found == [[True, False]] * 2
