"""The elastic loop on streamed shards: exact alone, and when members are killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ringleader.errors import InternalError
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from tests.kit import stream_task
from tests.kit.elastic_task import Member, members
from tests.kit.stream_task import EPOCHS, SIZES

Trained = tuple[list[list[float]], int]


def check(trained: Trained) -> None:
    weights, samples = trained
    assert np.abs(np.array(weights) - stream_task.reference()).max() < 1e-12
    assert samples == EPOCHS * sum(SIZES)


def test_one_member_reads_every_shard_exactly_like_plain_torch() -> None:
    check(stream_task.train(None))


def member_body(group: Group, ready: Ready, world: list[Member]) -> Trained:
    """Be one member; the group only tells which."""
    group.close()
    ready()
    return stream_task.be_member(world[group.rank])


@pytest.mark.slow
def test_shards_of_killed_members_are_continued_where_delivered_steps_ended(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    world = members(tmp_path, ["", "compute@3", "held@9"])
    with spawn_ranks(3, member_body, world, fork_server=fork_server) as ranks:
        for victim in (1, 2):
            with pytest.raises(InternalError, match="died without a word"):
                ranks[victim].result(300.0)
        check(ranks[0].result(300.0))
