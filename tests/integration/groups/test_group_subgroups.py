"""Groups within a group: disjoint, overlapping, nested, in any order of ranks."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ringleader.errors import GroupAborted, PeerUnreachable
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_threads, run_world, world

TRANSPORTS = ["memory", "tcp", "shm"]


def total(group: Group | None, value: float) -> float:
    """The sum over ``group`` by a small and by a large all_reduce, which must agree."""
    assert group is not None
    small, large = torch.full((3,), value), torch.full((200_000,), value)
    group.all_reduce(small)
    group.all_reduce(large)
    assert bool((large == small[0]).all())
    return small[0].item()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_disjoint_groups_work_side_by_side(transport: str) -> None:
    """Also sub-groups without rank 0."""

    def body(group: Group) -> float:
        even, odd = group.subgroup([0, 2]), group.subgroup([1, 3])
        assert (even is None) == (group.rank % 2 == 1)
        assert (odd is None) == (group.rank % 2 == 0)
        with even or odd or group as mine:
            assert (mine.size, mine.rank) == (2, group.rank // 2)
            return total(mine, 10.0**group.rank)

    assert run_world(4, body, transport) == [101.0, 1010.0, 101.0, 1010.0]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_overlapping_groups_do_not_disturb_each_other(transport: str) -> None:
    members = [(0, 1), (1, 2), (0, 1, 2), (2, 0)]

    def body(group: Group) -> None:
        groups = {m: group.subgroup(m) for m in members}
        for step in range(5):
            for ranks, each in groups.items():
                if each is None:
                    assert group.rank not in ranks
                    continue
                expected = sum(10.0**r + step for r in ranks)
                assert total(each, 10.0**group.rank + step) == expected
            assert total(group, 1.0) == 3.0
        for each in groups.values():
            if each is not None:
                each.close()
        assert total(group, 1.0) == 3.0, "a closed sub-group leaves its parent alone"

    run_world(3, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_order_of_ranks_is_the_order_in_the_sub_group(transport: str) -> None:
    order = [2, 0, 3, 1]

    def body(group: Group) -> list[float]:
        sub = group.subgroup(order)
        assert sub is not None
        with sub:
            assert sub.rank == order.index(group.rank)
            out = torch.zeros(4)
            sub.all_gather(out, torch.tensor([float(group.rank)]))
            tensor = torch.tensor([float(group.rank)])
            sub.broadcast(tensor, src=0)
            assert tensor.item() == 2
        return out.tolist()

    assert run_world(4, body, transport) == [[2.0, 0.0, 3.0, 1.0]] * 4


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_groups_within_groups_within_groups(transport: str) -> None:
    def body(group: Group) -> None:
        outer = group.subgroup([3, 2, 1])
        if outer is None:
            assert group.rank == 0
            return
        inner = outer.subgroup([2, 0])  # ranks 1 and 3 of the first group
        assert total(outer, 10.0**group.rank) == 1110.0
        if group.rank == 2:
            assert inner is None
        else:
            assert total(inner, 10.0**group.rank) == 1010.0
            assert inner is not None
            alone = inner.subgroup([inner.rank])
            assert total(alone, 5.0) == 5.0
            assert alone is not None
            alone.close()
            inner.close()
        outer.close()

    run_world(4, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_same_ranks_may_form_a_group_again_and_again(transport: str) -> None:
    def body(group: Group) -> None:
        groups = [group.subgroup([0, 1, 2]) for _ in range(6)]
        assert len({g.view_id for g in groups if g is not None}) == 6
        for step, each in enumerate(reversed(groups)):
            assert total(each, float(step)) == 3.0 * step
        for each in groups:
            assert each is not None
            each.close()

    run_world(3, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_end_of_a_sub_group_is_not_the_end_of_its_parent(transport: str) -> None:
    def body(group: Group) -> None:
        sub = group.subgroup([0, 1])
        if sub is not None:
            if group.rank == 0:
                sub.abort("enough")
            with contextlib.suppress(GroupAborted):
                sub.barrier()
                sub.barrier()
            with pytest.raises(GroupAborted):
                sub.barrier()
            sub.close()
        assert total(group, 1.0) == 3.0

    run_world(3, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_operations_of_two_groups_in_flight_at_once(transport: str) -> None:
    with world(3, transport) as groups:

        def body(group: Group) -> None:
            twin = group.subgroup([0, 1, 2])
            assert twin is not None
            with twin:
                first = [torch.full((50_000,), float(i)) for i in range(8)]
                second = [torch.full((7,), float(i)) for i in range(8)]
                works = []
                for a, b in zip(first, second, strict=True):
                    works.append(group.all_reduce(a, async_op=True))
                    works.append(twin.all_reduce(b, async_op=True))
                # The groups have an order each, and none between them.
                if group.rank == 1:
                    works.reverse()
                for work in works:
                    work.wait()
                for i in range(8):
                    assert bool((first[i] == 3.0 * i).all())
                    assert bool((second[i] == 3.0 * i).all())

        run_threads([lambda g=g: body(g) for g in groups])  # type: ignore[misc]


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_sub_group_that_timed_out_can_be_formed_later(transport: str) -> None:
    has_failed = threading.Event()

    def body(group: Group) -> float:
        if group.rank == 1:
            with pytest.raises(PeerUnreachable):
                group.subgroup([0, 1], timeout_s=0.2)
            with pytest.raises(PeerUnreachable):
                group.subgroup([0, 1], timeout_s=0.2)
            has_failed.set()
        assert has_failed.wait(60)
        sub = group.subgroup([0, 1], timeout_s=60)
        assert sub is not None
        with sub:
            return total(sub, 10.0**group.rank)

    assert run_world(2, body, transport) == [11.0, 11.0]


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_threads_may_form_two_sub_groups_in_opposite_order(transport: str) -> None:
    members = [(0, 1), (1, 0)]

    def body(group: Group) -> list[float]:
        has_begun = threading.Event()

        def form(ranks: tuple[int, int]) -> float:
            sub = group.subgroup(ranks, timeout_s=60)
            assert sub is not None
            with sub:
                return total(sub, 10.0**group.rank)

        def first() -> float:
            has_begun.set()
            return form(members[group.rank])

        def second() -> float:
            assert has_begun.wait(60)
            time.sleep(0.2)  # the first is waiting for the other rank by now
            return form(members[1 - group.rank])

        return run_threads([first, second])

    assert run_world(2, body, transport) == [[11.0, 11.0]] * 2


def _shared_memory_and_descriptors() -> tuple[int, int]:
    maps = Path("/proc/self/maps").read_text().count("memfd:ringleader")
    return maps, len(os.listdir("/proc/self/fd"))


def _abort_while(group: Group, waits: Callable[[], object]) -> None:
    """Abort from another thread, which holds the group until it has ended."""
    timer = threading.Timer(0.1, group.abort)
    timer.start()
    with pytest.raises(GroupAborted):
        waits()
    timer.join()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_closed_group_keeps_nothing_until_the_collector_runs(transport: str) -> None:
    def use(group: Group, *, is_queued: bool) -> None:
        """``is_queued``: as a call is that finds the group's background thread busy."""
        tensor = torch.ones(1 << 18)
        for each in (tensor, tensor[:3], tensor[:3]):  # the third is prepared
            group.all_reduce(each)
        group.broadcast(tensor, src=0)
        group.all_reduce(tensor, codec="int8")
        group.all_reduce(tensor, async_op=True).wait()
        if group.rank == 1:  # while it waits for the other rank
            _abort_while(
                group, lambda: group.all_reduce(tensor, async_op=is_queued).wait()
            )
        else:
            with pytest.raises(GroupAborted):
                group.recv(tensor, 1)
        group.close()
        assert group.progress().count == 1 << 18, "known after the end as well"

    def body(group: Group) -> None:
        for i in range(4):
            sub = group.subgroup([0, 1])
            assert sub is not None
            use(sub, is_queued=i % 2 == 0)
        use(group, is_queued=True)

    gc.collect()
    gc.disable()
    try:
        before = _shared_memory_and_descriptors()
        run_world(2, body, transport)
        assert _shared_memory_and_descriptors() == before
    finally:
        gc.enable()
