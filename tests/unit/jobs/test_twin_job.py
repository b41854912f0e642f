"""Which job a command shows instead of starting it once more."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ringleader.ids import NodeId
from ringleader.jobs.client.twin_job import (
    MOMENT_S,
    arbiter,
    comes_first,
    find_twin,
    starter,
)
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec

NOW_S = 1e9


def spec(job: str, *, started_on: str, args: list[str], nodes: str = "ab") -> JobSpec:
    machines = [JobMachine(NodeId(each * 52), each) for each in nodes]
    return JobSpec(
        id=job, script="train.py", args=args, machines=machines, started_on=started_on
    )


def started(tmp_path: Path, found: JobSpec, **changes: object) -> JobRecord:
    """A job that runs on this machine since five seconds."""
    (tmp_path / "train.py").write_text("train()")
    record = JobRecord(
        spec=found,
        machine="a",
        state=JobState.RUNNING,
        owner=found.machines[-1].node,
        created_s=NOW_S - 5,
        work=str(tmp_path),
    )
    return msgspec.structs.replace(record, **changes)


def test_the_same_command_from_another_machine_is_found(tmp_path: Path) -> None:
    first = started(tmp_path, spec("first", started_on="b", args=["--x"]))
    (tmp_path / "mine.py").write_text("train()")
    mine = spec("second", started_on="a", args=["--x"])
    assert find_twin([first], mine, tmp_path / "mine.py", NOW_S) is first


def test_a_machine_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    """The job's own names tell them apart."""
    other = spec("first", started_on="desktop", args=[])
    names = [f"desktop ({machine.node[:4]})" for machine in other.machines]
    machines = [
        JobMachine(m.node, n) for m, n in zip(other.machines, names, strict=True)
    ]
    record = started(tmp_path, msgspec.structs.replace(other, machines=machines))
    mine = spec("second", started_on="desktop", args=[])
    assert find_twin([record], mine, tmp_path / "train.py", NOW_S) is record
    assert starter(record) == "desktop (bbbb)"


@pytest.mark.parametrize(
    ("started_on", "args", "changes", "script"),
    [
        ("b", ["--y"], {}, "train()"),
        ("a", ["--x"], {"owner": ""}, "train()"),
        ("b", ["--x"], {"created_s": NOW_S - MOMENT_S}, "train()"),
        ("b", ["--x"], {"state": JobState.SUCCEEDED}, "train()"),
        ("b", ["--x"], {}, "train_better()"),
    ],
)
def test_what_differs_is_another_job(
    tmp_path: Path,
    started_on: str,
    args: list[str],
    changes: dict[str, object],
    script: str,
) -> None:
    other = spec("first", started_on=started_on, args=args)
    record = started(tmp_path, other, **changes)
    (tmp_path / "mine.py").write_text(script)
    mine = spec("second", started_on="a", args=["--x"])
    assert find_twin([record], mine, tmp_path / "mine.py", NOW_S) is None


def test_of_two_commands_at_once_one_comes_first() -> None:
    """Whatever each of them sees of the other when it asks."""
    one = spec("one", started_on="a", args=[], nodes="cab")
    two = spec("two", started_on="c", args=[], nodes="dcb")
    judge = arbiter(one, two)
    assert judge == arbiter(two, one)
    assert judge is not None
    assert judge.name == "b"
    both = [
        JobRecord(spec=each, machine="b", state=JobState.PREPARED, created_s=at_s)
        for each, at_s in ((one, 2.0), (two, 1.0))
    ]
    assert comes_first("two", "one", both)
    assert not comes_first("one", "two", both)
    assert comes_first("two", "one", both[1:]), "one is not there yet, and finds two"
    same = [msgspec.structs.replace(each, created_s=1.0) for each in both]
    assert comes_first("one", "two", same)
    assert not comes_first("two", "one", same)
    alone = spec("three", started_on="e", args=[], nodes="e")
    assert arbiter(one, alone) is None
