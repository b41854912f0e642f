"""Checkpoints of an elastic run: written when stable, resumed bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader import checkpoint
from ringleader.checkpoint import catalog
from ringleader.checkpoint.storage import open_storage
from ringleader.errors import ConfigError
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import ViewId
from ringleader.membership.steps.attempt import Attempt, new_lineage
from ringleader.training.data.balance import Flag, Report
from ringleader.training.state.run_checkpoints import (
    History,
    RunCheckpoints,
    is_writer_too,
    writers,
)
from tests.kit.state_members import Member, assert_equal

VIEW = ViewId(3, NodeId("n" * 52), Incarnation("5" * 16))
LINEAGE = new_lineage(VIEW)


def history(version: int) -> History:
    attempt = Attempt(VIEW, version)
    return History(version, 96 * version, LINEAGE, b"c" * 16, b"b" * 16, attempt)


def complete(folder: Path) -> list[int]:
    listed, damaged = catalog.list_here(open_storage(folder))
    assert not damaged
    return [each.step for each in listed if set(each.files) == set(each.held)]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "custom"])
def test_a_machine_resumes_alone_bit_for_bit(optimizer: str, tmp_path: Path) -> None:
    member = Member(1, optimizer)
    checkpoints = RunCheckpoints(tmp_path, member.state, "node a")
    member.train(2)
    checkpoints.stage(history(2))
    member.train(1)
    assert not checkpoints.publish(1, LINEAGE), "version 2 may still be taken back"
    assert checkpoints.publish(2, LINEAGE)
    checkpoints.close(is_over=True)

    again = Member(2, optimizer)
    found = RunCheckpoints(tmp_path, again.state, "node b").restore()
    assert found == history(2)
    reference = Member(1, optimizer)
    reference.train(2)
    assert_equal(reference, again)
    for each in (reference, again):
        each.train(2, seed=4)
    assert_equal(reference, again)


def test_only_two_members_write_and_old_ones_are_removed(tmp_path: Path) -> None:
    members = [Member(1, "adam") for _ in range(3)]
    folders = [tmp_path / name for name in "abc"]
    checkpoints = [
        RunCheckpoints(folder, member.state, f"node {i}", keep=2)
        for i, (folder, member) in enumerate(zip(folders, members, strict=True))
    ]
    nodes = [NodeId(name) for name in "abc"]
    for version in range(1, 4):
        for node, each in zip(nodes, checkpoints, strict=True):
            if node in writers(nodes):
                each.stage(history(version))
            each.publish(version, LINEAGE)
    checkpoints[0].stage(history(4))
    checkpoints[0].adopted()
    for each in checkpoints:
        each.close(is_over=True)
    assert [complete(folder) for folder in folders] == [[3, 2], [3, 2], []]
    assert RunCheckpoints(folders[2], members[2].state, "c").restore() is None


def test_another_one_writes_too_if_only_one_has_saved() -> None:
    a, b, c = nodes = [NodeId(name) for name in "abc"]
    nothing, saved = Report(1.0), Report(1.0, Flag.SAVED | Flag.BATTERY)
    for savers, too in (
        ((), ()),
        ((b,), (a,)),
        ((a,), (b,)),
        ((a, c), ()),
        (nodes, ()),
    ):
        reports = {node: saved if node in savers else nothing for node in nodes}
        assert tuple(n for n in nodes if is_writer_too(n, reports)) == too


def test_a_full_disk_does_not_end_the_training(tmp_path: Path) -> None:
    member = Member(1, "sgd")
    (tmp_path / "file").write_text("not a folder")
    checkpoints = RunCheckpoints(tmp_path / "file", member.state, "a")
    checkpoints.stage(history(1))
    assert checkpoints.publish(1, LINEAGE)
    checkpoints.stage(history(2))
    checkpoints.close(is_over=True)


def test_another_checkpoint_is_not_taken_for_one_of_a_run(tmp_path: Path) -> None:
    member = Member(1, "sgd")
    checkpoint.save(
        tmp_path,
        7,
        member.model,
        member.optimizer,
        scheduler=member.scheduler,
        scaler=member.scaler,
    )
    with pytest.raises(ConfigError, match=r"not a checkpoint of an elastic run"):
        RunCheckpoints(tmp_path, Member(2, "sgd").state, "a").restore()
