"""Collectives among the ranks that are alive, and the memory of their results."""

from __future__ import annotations

import torch

from ringleader.backend.living_collectives import AllGather, AllReduce, Broadcast, giver
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_world
from ringleader.training.result_memory import ResultMemory


def test_a_broadcast_from_a_lost_root_comes_from_the_lowest_live_rank() -> None:
    live = [2, 1]  # ranks of torch in the order of the group; rank 0 was lost

    def body(group: Group) -> tuple[float, float]:
        mine = torch.full((1021,), float(live[group.rank]))
        got = []
        for root in (0, 2):
            out = torch.empty_like(mine)
            for work in Broadcast([mine], root).start(group, live, [out]):
                work.wait()
            got.append(float(out.mean()))
        assert bool((mine == live[group.rank]).all()), "an input is never written"
        return got[0], got[1]

    assert run_world(2, body) == [(1.0, 2.0)] * 2


def test_a_mean_is_over_those_that_are_alive() -> None:
    def body(group: Group) -> torch.Tensor:
        mine = torch.tensor([1.0, 10.0], dtype=torch.float64) * (group.rank + 1)
        out = torch.empty_like(mine)
        for work in AllReduce([mine], "mean").start(group, [0, 2], [out]):
            work.wait()
        return out

    for result in run_world(2, body):
        assert result.tolist() == [1.5, 15.0]


def test_the_last_result_stays_as_it_is_until_the_next_is_there() -> None:
    memory = ResultMemory()
    shapes = [torch.empty(3, 5), torch.empty(7, dtype=torch.float64)]
    first = memory.like(shapes)
    memory.keep(first)
    second = memory.like(shapes)
    assert {t.data_ptr() for t in first}.isdisjoint(t.data_ptr() for t in second)
    memory.keep(second)
    third = memory.like(shapes)  # the memory of the first one again
    assert [t.data_ptr() for t in third] == [t.data_ptr() for t in first]
    assert [t.shape for t in third] == [t.shape for t in shapes]


def test_a_gather_has_each_live_rank_in_its_place_also_with_empty_parts() -> None:
    live = [2, 0]

    def body(group: Group) -> list[list[float]]:
        mine = [torch.full((n,), float(live[group.rank])) for n in (3, 0)]
        gather = AllGather(mine, [[each] * 3 for each in mine])
        outs = [torch.full(each.shape, -1.0) for each in gather.results]
        for work in gather.start(group, live, outs):
            work.wait()
        return [out.tolist() for out in outs]

    expected = [[0.0] * 3, [-1.0] * 3, [2.0] * 3, [], [], []]
    assert run_world(2, body) == [expected] * 2


def test_in_place_of_a_lost_rank_stands_the_next_live_one() -> None:
    assert [giver(rank, [0, 3], 5) for rank in range(5)] == [0, 3, 3, 3, 0]
