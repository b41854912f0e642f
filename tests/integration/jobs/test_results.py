"""What a job wrote comes home, and what of a command does not travel is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.machines import RINGLEADER
from tests.kit.resident_machine import resident_machine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")

LIMIT_S = 240.0
SCRIPT = """
import os, pathlib, sys
print("checkpoints", os.environ["RINGLEADER_CHECKPOINT"])
pathlib.Path("out").mkdir()
pathlib.Path("out/model.bin").write_bytes(bytes(2000))
with open("list.txt", "a") as file:
    file.write("more")
open(sys.argv[1])
"""


@dataclass(slots=True)
class Desk:
    """A machine that is up and refuses jobs of others, and a user who sits there."""

    home: Path
    project: Path

    def ask(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            [*RINGLEADER, *words],
            cwd=self.project,
            env={
                **os.environ,
                "RINGLEADER_HOME": str(self.home),
                "HOME": str(self.project.parent),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Its agent runs as bob would, whose home is not that of anna, who types."""
    monkeypatch.setenv("HOME", str(tmp_path / "bob"))
    project = tmp_path / "anna" / "project"
    project.mkdir(parents=True)
    (project / "train.py").write_text(SCRIPT)
    (project / "list.txt").write_text("x")
    (tmp_path / "anna" / "data.csv").touch()
    with resident_machine(tmp_path, accepts_jobs=False) as home:
        yield Desk(home, project)


def test_what_a_job_wrote_is_named_and_comes_home(desk: Desk, tmp_path: Path) -> None:
    """It runs where it is typed, though jobs of others are refused there. The program
    looks for a file that did not travel."""
    said = desk.ask("run", "--checkpoint=runs", "train.py", "../data.csv", status=1)
    assert "checkpoints: each machine keeps its own in ~/project/runs" in said
    assert f"| checkpoints {tmp_path}/bob/project/runs\n" in said
    assert "../data.csv does not travel: it lies outside of the project" in said
    assert "desk wrote out/ (2 KB), list.txt (5 bytes)\n" in said
    assert "failed: FileNotFoundError" in said
    assert "../data.csv is here, but not on that machine, or not in the job's" in said
    match = re.search(r"to bring that here: ringleader fetch (\S+)\n", said)
    assert match is not None, said
    job = match[1]

    assert f"2 files of desk in {job}/desk" in desk.ask("fetch")
    brought = desk.project / job / "desk"
    assert (brought / "out/model.bin").read_bytes() == bytes(2000)
    assert (brought / "list.txt").read_text() == "xmore"
    assert (desk.project / "list.txt").read_text() == "x", "nothing is replaced"
    assert "1 file of desk in" in desk.ask("fetch", job, "out")
    assert (desk.project / "out/model.bin").read_bytes() == bytes(2000)
    there = ("--from", "desk", "--into", "there/deep")
    desk.ask("fetch", job, "list.txt", *there)
    assert (desk.project / "there/deep/list.txt").read_text() == "xmore"
    assert "--from attic: no such machine" in desk.ask(
        "fetch", job, "--from", "attic", status=2
    )
    assert "rank 0 wrote no such file" in desk.ask("fetch", job, "no", status=1)

    (listed,) = json.loads(desk.ask("jobs", "--json"))
    assert [each["name"] for each in listed["written"]["desk"]] == ["out/", "list.txt"]
    assert listed["num_bytes"] > 0
    assert "pass --yes" in desk.ask("jobs", "prune", status=2)
    assert "desk: 1 job removed" in desk.ask("jobs", "prune", "--yes")
    assert json.loads(desk.ask("jobs", "--json")) == []
