"""A machine joins a run that is under way, and the result is that of one process."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from ringleader.deadline import Deadline
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.training import following
from ringleader.training.join.live_learner import LiveLearner
from ringleader.training.run import ElasticRun
from tests.kit import elastic_task
from tests.kit.elastic_task import SPEC, Member, Trained, difference, members

TIME_S = 300.0
NUM_MEMBERS = 3


class NotedLearner(LiveLearner):
    """Keeps whether it became level with the run."""

    levels: ClassVar[list[bool]] = []

    def wait_level(self, limit_s: float) -> bool:
        is_level = super().wait_level(limit_s)
        self.levels.append(is_level)
        return is_level


def joining_member(
    group: Group, ready: Ready, world: list[Member], live_bytes: int, under_way: Path
) -> tuple[Trained, list[bool]]:
    """Be one member, which takes a while for each quantum."""

    def pause(run: ElasticRun) -> None:
        """Compute for a while; for long in the second half, if the newcomer is late."""
        if run.version >= 1:
            under_way.touch()
        nodes = {entry.node for entry in run.ledger().entries()}
        is_late = run.version > 8 and len(nodes) < NUM_MEMBERS
        time.sleep(2.0 if is_late else 0.05)

    group.close()
    ready()
    following.LIVE_BYTES = live_bytes
    pytest.MonkeyPatch().setattr(following, "LiveLearner", NotedLearner)
    me = world[group.rank]
    limit = Deadline.after(TIME_S)
    while me.is_joiner and not under_way.exists():
        assert not limit.is_over(), "the others have begun no second step"
        time.sleep(0.01)
    return elastic_task.train(me.config(), pause=pause), NotedLearner.levels


@pytest.mark.slow
@pytest.mark.parametrize("live_bytes", [0, 1 << 60])
def test_a_newcomer_gets_the_state_and_takes_its_share(
    live_bytes: int, tmp_path: Path, fork_server: ForkServer
) -> None:
    world = members(tmp_path, ["", "", ""])
    world = [replace(each, size=2) for each in world]
    world[2] = replace(world[2], is_joiner=True)
    with spawn_ranks(
        3,
        joining_member,
        world,
        live_bytes,
        tmp_path / "under way",
        fork_server=fork_server,
    ) as ranks:
        results = [rank.result(TIME_S) for rank in ranks]
    for trained, _ in results:
        assert difference(trained.state, elastic_task.reference()) < 1e-9
        epochs = range(SPEC.epochs or 0)
        once = [(epoch, i) for epoch in epochs for i in range(SPEC.num_samples)]
        assert sorted(trained.positions) == once
        assert len(trained.nodes) == NUM_MEMBERS, "the newcomer computed quanta"
    (first, _), _, (newcomer, levels) = results
    assert min(newcomer.digests) > 1, "it came when the run was under way"
    assert all(newcomer.digests[v] == first.digests[v] for v in newcomer.digests)
    assert levels == ([] if live_bytes else [True]), "a large state is followed"
