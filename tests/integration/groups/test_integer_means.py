"""The mean of integers: the sum divided and truncated toward zero, as NCCL does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from ringleader.collectives.algorithm import algorithms
from ringleader.collectives.cost_model import Network
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_world

CASES = list(itertools.product([torch.int8, torch.int64], [1, 70_001]))
"""Exchanged at once, and in many pieces; some sums of int8 wrap."""


def given(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Of both signs, and so large that the sum of two int8 wraps in some places."""
    return (torch.arange(count) * 7 % 211 - 105 - rank).to(dtype)


@lru_cache
def mean(size: int, count: int, dtype: torch.dtype) -> Tensor:
    total = torch.stack([given(r, count, dtype) for r in range(size)]).sum(0)
    wrapped = total.to(dtype).long()
    return torch.div(wrapped, size, rounding_mode="trunc").to(dtype)


def names(operation: str, place: str) -> list[str | None]:
    if place == "shm":
        return [None]
    return [None, *algorithms(operation), "hierarchy"]


def check_all_reduce(group: Group, place: str) -> None:
    size = group.size
    for (dtype, count), name in itertools.product(CASES, names("all_reduce", place)):
        for _ in range(2):  # the second time a prepared form may run
            tensor = given(group.rank, count, dtype)
            group.all_reduce(tensor, "mean", algorithm=name)
            assert torch.equal(tensor, mean(size, count, dtype)), f"{name} {count}"


def check_reduce(group: Group, place: str) -> None:
    root = group.size - 1
    for (dtype, count), name in itertools.product(CASES, names("reduce", place)):
        tensor = given(group.rank, count, dtype)
        group.reduce(tensor, root, "mean", algorithm=name)
        if group.rank == root:
            wanted = mean(group.size, count, dtype)
        else:
            wanted = given(group.rank, count, dtype)
        assert torch.equal(tensor, wanted), f"{name} {count}"


def check_reduce_scatter(group: Group, place: str) -> None:
    size, rank = group.size, group.rank
    algorithms = names("reduce_scatter", place)
    for (dtype, count), name in itertools.product(CASES, algorithms):
        out = torch.zeros(count, dtype=dtype)
        source = given(rank, size * count, dtype)
        group.reduce_scatter(out, source, "mean", algorithm=name)
        wanted = mean(size, size * count, dtype)[rank * count :][:count]
        assert torch.equal(out, wanted), f"{name} {count}"


@pytest.mark.parametrize("place", ["memory", "shm"])
@pytest.mark.parametrize("size", [1, 4])
def test_it_is_truncated_toward_zero_in_every_algorithm(size: int, place: str) -> None:
    hosts = tuple(rank // 3 for rank in range(size))  # 3 + 1, for the hierarchy

    def body(group: Group) -> None:
        if place == "memory":
            network = replace(Network.unknown(size), hosts=hosts)
            handle_of(group).network = network
        check_all_reduce(group, place)
        check_reduce(group, place)
        check_reduce_scatter(group, place)

    run_world(size, body, place)
