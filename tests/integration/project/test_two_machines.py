"""One command on one machine, whose files or packages the other one lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringleader.node.launch.resident_agent import stop_resident
from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.machines import RINGLEADER, Machines
from tests.kit.warm_python import WarmPython
from tests.kit.wheels import install_folder, make_wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]

LIMIT_S = 600.0
DISK_MIB = 96
"""Home of the second machine: room for an environment with pip, not for much more."""

SCRIPT = """
import os
import rl_wheel
from rl_own.place import PROJECT  # which nobody has installed
data = (PROJECT / "daten für alle" / "größe 1.txt").read_text()
print(f"rank {os.environ['RANK']} read {data} and {rl_wheel.VALUE}", flush=True)
"""

PLACE = """
from pathlib import Path
PROJECT = Path(__file__).parents[2]
"""


@dataclass(slots=True)
class Pair:
    """Two machines that are up, with homes and installed packages of their own."""

    machines: Machines
    project: Path

    def ask(self, index: int, *words: str, status: int = 0) -> str:
        """Run a command and return what it printed."""
        path = os.pathsep.join([*self.packages(index), os.environ["PYTHONPATH"]])
        command = self.machines.start(index, *RINGLEADER, *words, PYTHONPATH=path)
        assert command.end(LIMIT_S) == status, "".join(command.lines)
        return "".join(command.lines)

    def packages(self, index: int) -> list[str]:
        """Only the first machine has the package."""
        return [str(self.machines.folder / "site")] if index == 0 else []

    def home(self, index: int) -> Path:
        return self.machines.folder / f"home{index}"

    def nothing_is_left(self) -> None:
        """Wait until no machine has a folder of a job, or a half-written file."""
        until_s = time.monotonic() + LIMIT_S
        while left := [*_left(self.home(0)), *_left(self.home(1))]:
            assert time.monotonic() < until_s, left
            time.sleep(0.05)

    def rows(self) -> list[dict[str, Any]]:
        """The machines that accept jobs, as the first one sees them."""
        said = self.ask(0, "status", "--json")
        found = json.loads(said[said.index("[") :])[0]["nodes"]
        return [row for row in found if row["in_view"] and row["accepts_jobs"]]


def _left(home: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(home):  # which ignores what vanishes
        names = [*folders, *files]
        yield from (f"{folder}/{name}" for name in names if name.startswith(".new-"))
        if Path(folder).parent == home / "jobs":
            yield from (f"{folder}/{name}" for name in folders)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "home1"
    path.mkdir(mode=0o700)
    options = f"size={DISK_MIB}m,mode=700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(path)]
    subprocess.run(mount, check=True, timeout=LIMIT_S)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True, timeout=LIMIT_S)


@pytest.fixture
def pair(disk: Path, tmp_path: Path, warm_python: WarmPython) -> Iterator[Pair]:
    assert disk.parent == tmp_path
    project = tmp_path / "Mein Projekt äöü"
    (project / "daten für alle").mkdir(parents=True)
    for folder in ("skripte", "src/rl_own"):
        (project / folder).mkdir(parents=True)
    (project / "skripte" / "mein skript.py").write_text(SCRIPT)
    (project / "src" / "rl_own" / "__init__.py").touch()
    subprocess.run(["git", "init", "-q", str(project)], check=True, timeout=LIMIT_S)
    (project / "src" / "rl_own" / "place.py").write_text(PLACE)
    (project / "daten für alle" / "größe 1.txt").write_text("Größe")
    install_folder(
        make_wheel(tmp_path / "wheels", "rl_wheel", "1.4.0"), tmp_path / "site"
    )
    with lan(hosts=2, rate="1gbit") as net:
        yield from _up(net, Pair(Machines(net, tmp_path, warm_python), project))


def _up(net: VirtualLan, made: Pair) -> Iterator[Pair]:
    try:
        for index in range(len(net.hosts)):
            made.ask(index, "up", "--jobs", "--wait", "0")
        until_s = time.monotonic() + LIMIT_S
        while len(made.rows()) < 2:
            assert time.monotonic() < until_s
            time.sleep(0.5)  # it asks by a command
        yield made
    finally:
        for index in range(2):
            stop_resident(made.home(index))
        made.machines.close()


def test_a_machine_that_lacks_something_is_named_before_anything_starts(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pair.project)
    run = ("run", "skripte/mein skript.py")

    said = pair.ask(0, *run, status=1)
    assert "m1: the Python environment differs; nothing was started" in said
    assert 'm1       rl_wheel  1.4.0   missing  pip install "rl_wheel==1.4.0"' in said
    assert "--sync-env" in said
    assert "m0  " not in said, "the table shows what differs"
    said = pair.ask(0, "run", "--no-sync", "skripte/mein skript.py", status=1)
    assert "m1       rl_wheel" in said, "files that do not travel need packages, too"

    big = pair.project / "daten für alle" / "gewichte.bin"
    with big.open("wb") as file:
        file.truncate(2 * 10**9)
    said = pair.ask(0, *run, status=1)
    assert "2 GB  daten für alle/gewichte.bin" in said
    assert "at most 512 MB travel" in said

    with big.open("wb") as file:
        file.truncate(200 << 20)
    said = pair.ask(0, *run, status=1)
    assert "m1: the disk of" in said
    assert "is full: 211 MB are needed" in said.replace("\n", " ")
    big.unlink()
    pair.nothing_is_left()
    make_what_it_lacks(pair)


def make_what_it_lacks(pair: Pair) -> None:
    """The second machine, and only that one, installs from the project's list."""
    said = pair.ask(
        0, "run", "--no-sync", "--sync-env", "skripte/mein skript.py", status=1
    )
    assert "omit --no-sync" in said

    list_of = f"--no-index\n--find-links {pair.machines.folder}/wheels\nrl_wheel==1.5\n"
    (pair.project / "requirements.txt").write_text(list_of)
    said = pair.ask(0, "run", "--sync-env", "skripte/mein skript.py", status=1)
    assert "m1: --sync-env: requirements.txt: " in said
    assert "rl_wheel==1.5" in said

    make_wheel(pair.machines.folder / "wheels", "rl_wheel", "1.4.1", value=141)
    (pair.project / "requirements.txt").write_text(list_of.replace("1.5", "1.4.1"))
    said = pair.ask(0, "run", "--sync-env", "skripte/mein skript.py")
    assert "m1:1 | rank 1 read Größe and 141" in said
    assert "rank 0 read Größe and 1\n" in said, (
        "a machine that lacks nothing makes none"
    )
