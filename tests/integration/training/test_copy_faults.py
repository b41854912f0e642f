"""Machines are lost while one that has a complete state copies a newer one.

All points of the copy, with the link cut as well: ``benchmarks/elastic_kills.py
--copies``.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kit.elastic_copies import REACH_S, Case, Copies, CopyFaults, cases
from tests.kit.elastic_world import Ended, World

NUM_CASES = 4


def run(folder: Path, size: int, chosen: list[Case]) -> Copies:
    found = Copies()
    with World(folder, size) as world:
        faults = CopyFaults(world, found, seed=1)
        faults.begin()
        for case in chosen:
            faults.carry_out(case)
    return found


def test_a_machine_whose_only_source_dies_in_a_copy_trains_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own state is the last one: it was complete, and is not given up.

    A newcomer has none: it ends, and says why.
    """
    found = Copies()
    with World(tmp_path, 2) as world:
        faults = CopyFaults(world, found, seed=1)
        faults.begin()
        faults.carry_out(Case("source killed", 8))
        assert found.cases == {"source killed": 1}
        world.kill(world.alive[0])
        source = world.alive[1]
        source.tell(arm="copy:piece@8")
        world.start(0, joins=True, LOST_S="0.5")
        assert world.wait_for_death(source, REACH_S)
        with pytest.raises(Ended, match="m0 ended by itself, with status 1"):
            world.wait(lambda: not world.alive, REACH_S, "the end of the newcomer")
    said = capfd.readouterr().err
    assert "have no complete state of the run, and no checkpoint" in said


def test_without_memory_for_two_states_the_checkpoint_is_what_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with World(tmp_path, 2) as world:
        for index in range(2):
            little = {"RINGLEADER_MEMORY": "6KB", "LOST_S": "0.2"}
            world.start(index, joins=False, **little)
        world.wait_complete()
        source, behind = world.alive.values()
        folder = tmp_path / f"checkpoints{behind.index}"
        for member in (source, behind):
            member.tell(pause_s=0.005)
            member.tell(saves=True)
        world.wait(lambda: any(folder.glob("*/*")), REACH_S, "a checkpoint")
        world.is_split = True
        silent_s = world.kill(behind, signal.SIGSTOP)
        without = [world.nodes[behind.index]]
        after_s = world.wait_for_step(silent_s, [source], without=without)
        world.wait_for_step(after_s, [source])
        source.tell(arm="copy:piece@8")
        world.wait(lambda: "armed" in source.replies, REACH_S, "the armed point")
        world.kill(behind, signal.SIGCONT)
        assert world.wait_for_death(source, REACH_S)
        behind.version = -1  # it goes on from an older one
        world.wait_for_step(source.died_s, [behind])
        world.check_ledger()
    said = capfd.readouterr().err
    assert "there is no memory for a second copy" in said
    assert "going on from the newest checkpoint here, of step" in said


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_a_fault_at_each_point_of_a_copy_loses_no_state(
    tmp_path: Path, size: int
) -> None:
    every = cases(size, seed=size)
    found = run(tmp_path, size, [next(every) for _ in range(NUM_CASES)])
    assert sum(found.cases.values()) + found.not_reached == NUM_CASES
    assert sum(found.cases.values()) > NUM_CASES // 2
