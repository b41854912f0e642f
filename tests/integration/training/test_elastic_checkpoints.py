"""A run that died goes on from its newest checkpoint, and ends as if nothing was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from ringleader.checkpoint import catalog
from ringleader.checkpoint.storage import open_storage
from ringleader.errors import ConfigError, InternalError
from ringleader.groups.group import Group
from ringleader.settings.kill_point import kill_point
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.training import kill_points
from ringleader.training.data.balance import Flag
from ringleader.training.elastic import start_run
from ringleader.training.machine_events import MachineEvents
from ringleader.training.options import Options
from tests.kit import elastic_task
from tests.kit.elastic_task import SEED, SPEC, Member, Trained, difference, members

TIME_S = 300.0


def everything_once() -> list[tuple[int, int]]:
    epochs = range(SPEC.epochs or 0)
    return [(epoch, i) for epoch in epochs for i in range(SPEC.num_samples)]


def check(trained: Trained) -> None:
    assert difference(trained.state, elastic_task.reference()) < 1e-9
    assert sorted(trained.positions) == everything_once()


def test_alone_a_run_resumes_in_mid_epoch(tmp_path: Path) -> None:
    first = elastic_task.train(None, checkpoint=tmp_path, until=7, save_every=3)
    assert list(first.digests) == list(range(1, 8))
    second = elastic_task.train(None, checkpoint=tmp_path)
    assert list(second.digests) == list(range(7, 19)), "6 was published, 7 is redone"
    assert second.digests[7] == first.digests[7]
    check(second)


def test_a_checkpoint_needs_a_folder_and_a_step_boundary(tmp_path: Path) -> None:
    model, optimizer, _ = elastic_task.parts()
    options = Options(seed=SEED)
    with start_run(
        model, optimizer, elastic_task.samples(), SPEC, options, None
    ) as run:
        with pytest.raises(ConfigError, match="--checkpoint DIR"):
            run.checkpoint()
        x, y = next(run)
        run.backward(nn.functional.cross_entropy(model(x), y))
        with pytest.raises(ConfigError, match=r"when run.step\(\) has returned True"):
            run.checkpoint()


def saving_member(
    group: Group, ready: Ready, world: list[Member], folders: list[Path]
) -> Trained:
    """Be one member that saves every fourth version; the group only tells which."""
    group.close()
    ready()
    me = world[group.rank]
    kill_points.arm(kill_point({"RINGLEADER_KILL_AT": me.kill_at}))
    return elastic_task.train(me.config(), checkpoint=folders[group.rank], save_every=4)


@pytest.mark.slow
def test_after_a_power_cut_two_of_three_machines_go_on(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    folders = [tmp_path / name for name in "abc"]
    world = members(tmp_path, ["held@11"] * 3)
    with spawn_ranks(
        3, saving_member, world, folders, fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            with pytest.raises(InternalError, match="died without a word"):
                rank.result(TIME_S)
    steps = [_steps(folder) for folder in folders]
    assert sorted(4 in each for each in steps) == [False, True, True], "on two disks"
    newest = max(step for each in steps for step in each)
    with_newest = next(i for i, each in enumerate(steps) if newest in each)
    without = next(i for i, each in enumerate(steps) if newest not in each)
    chosen = [with_newest, without]
    again = [replace(world[i], kill_at="", size=2) for i in chosen]
    back = [folders[i] for i in chosen]
    with spawn_ranks(2, saving_member, again, back, fork_server=fork_server) as ranks:
        results = [rank.result(TIME_S) for rank in ranks]
    for each in results:
        check(each)
        assert min(each.digests) == newest + 1
    assert results[0].digests == results[1].digests


def resting_member(
    group: Group, ready: Ready, world: list[Member], folders: list[Path]
) -> Trained:
    """Be one of two members, of which the second gets no quanta."""
    if group.rank == 1:
        MachineEvents.flags = lambda self: Flag.BATTERY  # type: ignore[method-assign]
    return saving_member(group, ready, world, folders)


@pytest.mark.slow
def test_a_machine_without_work_keeps_the_second_copy(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    folders = [tmp_path / name for name in "ab"]
    world = members(tmp_path, [""] * 2)
    with spawn_ranks(
        2, resting_member, world, folders, fork_server=fork_server
    ) as ranks:
        results = [rank.result(TIME_S) for rank in ranks]
    for each in results:
        check(each)
    assert _steps(folders[0]) == _steps(folders[1]) == [16, 12, 8]
    alone = elastic_task.train(None, checkpoint=folders[1])
    assert min(alone.digests) == 17
    check(alone)


def _steps(folder: Path) -> list[int]:
    listed, _ = catalog.list_here(open_storage(folder))
    return [each.step for each in listed if set(each.files) == set(each.held)]
