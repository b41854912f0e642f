"""Encrypted links with a connection for each direction, and threads that use them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from unittest.mock import patch

import pytest
import torch

from ringleader.errors import DeadlineExceeded, PeerLost
from ringleader.groups.group import Group, handle_of
from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.testing.processes import ForkServer, Rank, Ready, spawn_ranks
from ringleader.transport.helped_link import HelpedLink
from ringleader.transport.one_way import Helper

PATIENCE_S = 120.0
STOP_TIMEOUT_S = 10.0
SIZES = (1, 1000, 40_000, 300_000, 1_500_001)
"""Elements: prepared, small, around the smallest piece for helpers, several stripes."""

Spawn = Callable[..., AbstractContextManager[list[Rank]]]


@pytest.fixture(scope="module")
def spawn(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Spawn:
    """``spawn_ranks`` with the credentials of one node and two connections each way."""
    path = tmp_path_factory.mktemp("node") / "credentials"
    secret = ClusterSecret(root=Secret(bytes(32)))
    Credentials.issue(secret, NodeKey.ephemeral()).to_file(path)
    env = {"RINGLEADER_CREDENTIALS": str(path), "RINGLEADER_HELPER_THREADS": "3"}
    return partial(spawn_ranks, fork_server=fork_server, env=env)


def values_of(rank: int, count: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(1000 * rank + count)
    return torch.randn(count, generator=made, dtype=torch.float64)


def compute(group: Group, _: Ready) -> tuple[float, bool, bool]:
    """Large and small calls in turn: the largest relative error, and what was used."""
    worst = 0.0
    with patch.object(Helper, "put", autospec=True, side_effect=Helper.put) as put:
        for algorithm in ("auto", "direct"):
            for count in (*SIZES, *reversed(SIZES)):
                tensor = values_of(group.rank, count).float()
                group.all_reduce(tensor, algorithm=algorithm)
                total = sum(values_of(rank, count) for rank in range(group.size))
                assert isinstance(total, torch.Tensor)
                error = (tensor.double() - total).norm() / total.norm()
                worst = max(worst, float(error))
            group.barrier()
    links = handle_of(group).mesh.bulk.values()
    return worst, all(isinstance(link, HelpedLink) for link in links), put.called


@pytest.mark.parametrize("size", [2, 3])
def test_helpers_change_no_value(spawn: Spawn, size: int) -> None:
    with spawn(size, compute) as ranks:
        results = [rank.result(within_s=2 * PATIENCE_S) for rank in ranks]
    for worst, is_made, is_used in results:
        assert worst < 1e-6
        assert is_made
        assert is_used


def gather_and_scatter(group: Group, _: Ready) -> bool:
    """Other operations, of more than a stripe."""
    count, ranks = 200_000, range(group.size)
    rows = [torch.empty(count) for _ in ranks]
    group.all_gather(rows, torch.full((count,), float(group.rank)))
    are_right = [bool((row == rank).all()) for rank, row in enumerate(rows)]
    mine = torch.zeros(count)
    group.reduce_scatter(mine, [torch.full((count,), float(r)) for r in ranks])
    are_right.append(bool((mine == group.rank * group.size).all()))
    seen = torch.full((count,), float(group.rank + 5))
    group.broadcast(seen, 1)
    are_right.append(bool((seen == 6).all()))
    return all(are_right)


def test_other_operations_take_the_same_way(spawn: Spawn) -> None:
    with spawn(3, gather_and_scatter) as ranks:
        assert [rank.result(within_s=PATIENCE_S) for rank in ranks] == [True] * 3


def reduce_for_ever(group: Group, ready: Ready) -> None:
    tensor = torch.zeros(2_000_000)
    group.all_reduce(tensor)
    ready()
    while True:
        group.all_reduce(tensor)


def test_a_rank_killed_in_the_middle_of_a_transfer_is_named(spawn: Spawn) -> None:
    with spawn(2, reduce_for_ever, timeout_s=10 * PATIENCE_S) as ranks:
        for rank in ranks:
            rank.wait_ready(within_s=PATIENCE_S)
        ranks[1].kill()
        error = ranks[0].error(within_s=PATIENCE_S)
    assert isinstance(error, PeerLost)
    assert error.peer == 1


def test_a_stopped_rank_is_named_at_the_deadline(spawn: Spawn) -> None:
    with spawn(2, reduce_for_ever, timeout_s=STOP_TIMEOUT_S) as ranks:
        for rank in ranks:
            rank.wait_ready(within_s=PATIENCE_S)
        ranks[1].stop()
        error = ranks[0].error(within_s=PATIENCE_S)
    assert isinstance(error, DeadlineExceeded)
    assert error.peer == 1
