"""A machine joins a run that is under way, and the result is that of one process."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.training import following
from ringleader.training.run import ElasticRun
from tests.kit import elastic_task
from tests.kit.elastic_task import SPEC, Member, Trained, difference, members

TIME_S = 300.0
NUM_MEMBERS = 3


class Texts(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def pause(run: ElasticRun) -> None:
    """Compute for a while; for long in the second half, if the newcomer is late."""
    nodes = {entry.node for entry in run.ledger().entries()}
    is_late = run.version > 8 and len(nodes) < NUM_MEMBERS
    time.sleep(2.0 if is_late else 0.05)


def joining_member(
    group: Group, ready: Ready, world: list[Member], live_bytes: int
) -> tuple[Trained, list[str]]:
    """Be one member, which takes a while for each quantum."""
    group.close()
    ready()
    following.LIVE_BYTES = live_bytes
    handler = Texts()
    logging.getLogger("ringleader.training").setLevel(logging.INFO)
    logging.getLogger("ringleader.training").addHandler(handler)
    trained = elastic_task.train(world[group.rank].config(), pause=pause)
    return trained, handler.texts


@pytest.mark.slow
@pytest.mark.parametrize("live_bytes", [0, 1 << 60])
def test_a_newcomer_gets_the_state_and_takes_its_share(
    live_bytes: int, tmp_path: Path, fork_server: ForkServer
) -> None:
    world = members(tmp_path, ["", "", ""])
    world = [replace(each, size=2) for each in world]
    world[2] = replace(world[2], is_joiner=True)
    with spawn_ranks(
        3, joining_member, world, live_bytes, fork_server=fork_server
    ) as ranks:
        results = [rank.result(TIME_S) for rank in ranks]
    for trained, _ in results:
        assert difference(trained.state, elastic_task.reference()) < 1e-9
        epochs = range(SPEC.epochs or 0)
        once = [(epoch, i) for epoch in epochs for i in range(SPEC.num_samples)]
        assert sorted(trained.positions) == once
        assert len(trained.nodes) == NUM_MEMBERS, "the newcomer computed quanta"
    (first, _), _, (newcomer, texts) = results
    assert live_bytes or min(newcomer.digests) > 1, "it followed steps before it came"
    assert all(newcomer.digests[v] == first.digests[v] for v in newcomer.digests)
    is_live = "level with the run: yes" in texts
    assert is_live == (not live_bytes)
