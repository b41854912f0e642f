"""Hierarchical collectives: every dtype, any root, unequal hosts, sub-groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import Network
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_threads, world
from tests.integration.groups.test_values import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    reference,
    tolerance,
    values,
)

HOSTS = (0, 1, 2, 2, 0)
"""1 + 2 + 2 ranks; the last rank is not the local root of its host."""
PART = (4, 3, 1, 2)
"""A sub-group that cuts through host 0, whose local root is not in it: 1 + 2 + 1."""
COUNT = 1003


def assert_near(result: torch.Tensor, want: torch.Tensor) -> None:
    rtol = tolerance(want.dtype)
    torch.testing.assert_close(result, want, rtol=rtol, atol=0.0)


def check(group: Group, dtype: torch.dtype) -> None:
    """Sums, means and copies over ``group``, against a wider reference."""
    size, rank = group.size, group.rank
    roots = range(size) if dtype is torch.float32 else (size - 1,)
    for op in ("sum", "mean"):
        want = reference(size, COUNT, dtype, op).to(dtype)
        tensor = values(rank, COUNT, dtype)
        group.all_reduce(tensor, op, algorithm="hierarchy")
        assert_near(tensor, want)
        for root in roots:
            tensor = values(rank, COUNT, dtype)
            group.reduce(tensor, root, op, algorithm="hierarchy")
            if rank == root:
                assert_near(tensor, want)
        out = torch.zeros(COUNT, dtype=dtype)
        whole = values(rank, size * COUNT, dtype)
        group.reduce_scatter(out, whole, op, algorithm="hierarchy")
        wants = reference(size, size * COUNT, dtype, op).to(dtype).view(size, COUNT)
        assert_near(out, wants[rank])
    for root in roots:
        tensor = values(rank, COUNT, dtype)
        group.broadcast(tensor, root, algorithm="hierarchy")
        assert torch.equal(tensor, values(root, COUNT, dtype)), f"ZF-15: root {root}"


@pytest.mark.parametrize(
    "strategy",
    ["ring", *(pytest.param(s, marks=pytest.mark.slow) for s in ("tree:3", "star"))],
)
def test_every_dtype_and_root_over_unequal_hosts_and_their_parts(strategy: str) -> None:
    """ZF-3: means are over ranks. ZF-15: a root need not be a local root."""
    network = replace(Network.unknown(len(HOSTS)), hosts=HOSTS)
    config = CollectiveConfig(
        num_nodes=3,
        num_devices=2,
        global_all_reduce=strategy,
        global_reduce=strategy,
        global_broadcast=strategy,
    )

    def body(group: Group) -> None:
        handle_of(group).network = network
        for dtype in (*FLOATS, *COMPLEX, *INTEGERS):
            check(group, dtype)
        part = group.subgroup(PART)
        if part is not None:
            with part:
                for dtype in (torch.float32, torch.int64):
                    check(part, dtype)

    with world(len(HOSTS), config=config) as groups:
        run_threads([lambda g=g: body(g) for g in groups])  # type: ignore[misc]
