"""Two machines that need a majority: the leader goes on alone, the other one waits."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.kit.elastic_world import World

pytestmark = pytest.mark.slow
WITHIN_S = 200.0


def test_without_the_leader_the_other_one_waits_until_it_is_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with World(tmp_path, 2, options={"partition": "majority"}) as world:
        for index in range(2):
            world.start(index, joins=False)
        world.wait_complete()
        said = capfd.readouterr().err
        leader, other = (
            world.alive[i] for i in ((0, 1) if "other, m0 goes on" in said else (1, 0))
        )
        name = f"m{leader.index} goes on and m{other.index} waits for it"
        assert name in said
        silent_s = world.kill(other, signal.SIGSTOP)
        without = [world.nodes[other.index]]
        world.wait_for_step(silent_s, [leader], WITHIN_S, without=without)
        world.kill(other, signal.SIGCONT)
        world.wait_complete(WITHIN_S)

        # Nobody else was named since: it is the leader of the new view, too.
        assert "goes on and" not in capfd.readouterr().err
        version = other.version
        world.kill(leader, signal.SIGSTOP)
        since_s = time.monotonic()
        while time.monotonic() < since_s + 10:  # it is evicted after four seconds
            world.handle(0.1)
        assert other.version <= version + 1
        world.kill(leader, signal.SIGCONT)
        world.wait_for_step(time.monotonic(), [leader, other], WITHIN_S)
        world.check_ledger()
