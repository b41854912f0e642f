"""The elastic loop: exact alone, and exact whoever of several members is killed."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from ringleader.errors import InternalError
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from tests.kit import elastic_task
from tests.kit.elastic_task import SPEC, Member, Trained, difference, digest, members

TIME_S = 300.0


def member_body(group: Group, ready: Ready, world: list[Member]) -> Trained:
    """Be one member; the group only tells which."""
    group.close()
    ready()
    return elastic_task.be_member(world[group.rank])


@cache
def reference() -> dict[str, np.ndarray]:
    return elastic_task.reference()


def everything_once() -> list[tuple[int, int]]:
    """Epoch and position of every sample of the task."""
    epochs = range(SPEC.epochs or 0)
    return [(epoch, i) for epoch in epochs for i in range(SPEC.num_samples)]


def check(trained: Trained) -> None:
    """The model is that of plain torch, and no sample was lost or used twice."""
    assert difference(trained.state, reference()) < 1e-9
    assert sorted(trained.positions) == everything_once()


def test_one_member_trains_exactly_like_plain_torch() -> None:
    """Uneven last step, clipping, scheduler, BatchNorm, dropout, unused parameter."""
    trained = elastic_task.train(None)
    check(trained)
    assert list(trained.digests) == list(range(1, 19))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "point"),
    [
        (0, "compute@3"),  # of a slow member no more is certain: three steps decide
        (1, "rs:0@4"),
        (2, "ag:0@4"),
        (0, "ag:sideband@3"),
        (1, "held@5"),
        (0, "applying@5"),
    ],
)
def test_the_survivors_of_a_kill_train_on_exactly(
    victim: int, point: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    kills = ["", "", ""]
    kills[victim] = point
    world = members(tmp_path, kills)
    with spawn_ranks(3, member_body, world, fork_server=fork_server) as ranks:
        with pytest.raises(InternalError, match="died without a word"):
            ranks[victim].result(TIME_S)
        survivors = [r.result(TIME_S) for r in ranks if r.rank != victim]
    for each in survivors:
        check(each)
        assert len(each.nodes) == 3, "the victim contributed before it died"
    first, second = survivors
    assert list(first.digests) == list(range(1, 19))
    assert first.digests == second.digests, "bit-identical after every step"


@pytest.mark.slow
def test_of_two_members_the_last_one_trains_on(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    world = members(tmp_path, ["held@4", ""])
    with spawn_ranks(2, member_body, world, fork_server=fork_server) as ranks:
        check(ranks[1].result(TIME_S))


def leaving_body(group: Group, ready: Ready, world: list[Member]) -> Trained:
    """As ``member_body``; rank 1 gets a SIGTERM after its fourth step."""
    if group.rank == 1:
        digests = []

        def count(model: nn.Module) -> str:
            digests.append(digest(model))
            if len(digests) == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return digests[-1]

        elastic_task.digest = count
    return member_body(group, ready, world)


@pytest.mark.slow
def test_a_member_that_gets_a_sigterm_finishes_its_step_and_leaves(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    world = members(tmp_path, ["", "", ""])
    with spawn_ranks(3, leaving_body, world, fork_server=fork_server) as ranks:
        with pytest.raises(InternalError, match="died without a word"):
            ranks[1].result(TIME_S)
        rest = [ranks[i].result(TIME_S) for i in (0, 2)]
    for each in rest:
        check(each)
        assert len(each.nodes) == 3
