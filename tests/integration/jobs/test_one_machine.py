"""``ringleader run`` with an agent that is up, on one machine, in a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.ids import NodeId
from ringleader.jobs.client.channel import find_agent
from ringleader.jobs.machine.job_folder import JobFolder, jobs_directory
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.node.launch.resident_agent import find_resident
from tests.kit.machines import RINGLEADER
from tests.kit.resident_machine import resident_machine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")

LIMIT_S = 240.0

SCRIPT = """
import os, sys, time
rank = os.environ["RANK"]
print(f"rank {rank} of {os.environ['WORLD_SIZE']} terminal {sys.stdout.isatty()}")
if rank == "0":
    print(f"columns {os.get_terminal_size(1).columns}")
    for part in range(3):
        print(f"\\r{part} of 2", end="", flush=True)
print()
sys.stdout.flush()
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with resident_machine(tmp_path) as made:
        yield made


class Screen:
    """A terminal of 100 columns, and what was written to it."""

    def __init__(self) -> None:
        import pty  # not on Windows
        import termios

        self.ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (30, 100))
        os.set_blocking(self.ours, False)
        self.text = ""

    def shows(self, home: Path, folder: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start ``ringleader run`` in it."""
        return subprocess.Popen(
            [*RINGLEADER, "run", *words],
            cwd=folder,
            env={**os.environ, "RINGLEADER_HOME": str(home)},
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
        )

    def read(self) -> str:
        with contextlib.suppress(OSError):  # nothing to read now
            self.text += os.read(self.ours, 1 << 16).decode(errors="replace")
        return self.text

    def wait_for(self, pattern: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.read()):
            assert time.monotonic() < until_s, self.text
            time.sleep(0.02)


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    os.close(made.ours)
    os.close(made.theirs)


@pytest.mark.slow
def test_rank_0_has_a_terminal_and_ctrl_c_stops_all(
    home: Path, tmp_path: Path, screen: Screen
) -> None:
    project = tmp_path / "Projekt"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    command = screen.shows(home, project, "--nproc-per-node", "2", "train.py", "3600")
    try:
        screen.wait_for(r"desk:0 \| \x1b\[0mrank 0 of 2 terminal True")
        screen.wait_for(r"desk:1 \| \x1b\[0mrank 1 of 2 terminal False")
        screen.wait_for(r"columns 90")  # beside the label
        screen.wait_for(r"\x1b\[36mdesk:0 \| \x1b\[0m2 of 2")
        command.send_signal(signal.SIGINT)
        screen.wait_for(r"stopping job \S+ on all machines")
        screen.wait_for(r"job \S+ was stopped")
        assert command.wait(LIMIT_S) == 130
    finally:
        command.kill()
        command.wait(LIMIT_S)
    assert sorted(os.listdir(project)) == ["train.py"]


class Viewer:
    """A command that shows a job."""

    def __init__(self, home: Path, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [*RINGLEADER, *words],
            cwd=folder,
            env={**os.environ, "RINGLEADER_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    def wait_for(self, text: str) -> str:
        """Return the first line with ``text``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if text in line:
                return line
        raise AssertionError(self.said)

    def end(self, number: signal.Signals) -> tuple[int, list[str]]:
        """Send a signal; return the status and the lines since then."""
        assert self.process.stdout is not None
        self.process.send_signal(number)
        lines = self.process.stdout.read().splitlines()
        return self.process.wait(LIMIT_S), lines


@pytest.mark.usefixtures("hearing")
def test_a_viewer_that_is_killed_leaves_the_job_and_a_stop_is_quiet(
    home: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(
        "import os, time\nprint('rank', os.environ['RANK'], 'of 2', flush=True)\n"
        "time.sleep(3600)\n"
    )
    words = ("run", "--nproc-per-node", "2", "train.py")
    viewers = [Viewer(home, project, *words)]
    try:
        match = re.search(r"job (\S+) on", viewers[0].wait_for(" on desk"))
        assert match is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            viewers[-1].wait_for("rank 0 of 2")
            code, lines = viewers[-1].end(number)
            assert code == 128 + number, lines
            assert lines[-1].endswith(
                f"goes on; to see it: ringleader attach {match[1]}"
            )
            viewers.append(Viewer(home, project, "attach", match[1]))
        viewers[-1].wait_for("rank 0 of 2")
        code, lines = viewers[-1].end(signal.SIGINT)
    finally:
        for each in viewers:
            each.process.kill()
            each.process.communicate()
    assert code == 130, lines
    assert lines[-1] == f"ringleader: job {match[1]} was stopped"
    places = sorted(line for line in lines if "stopped in train.py:" in line)
    assert [line[:6] for line in places] == ["desk:0", "desk:1"], lines
    assert len(lines) < 10, lines


OWN_STORE = """
import os, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", "file://{}/meet", rank=rank, world_size=2)
"""


@pytest.mark.parametrize(
    ("lines", "is_told"),
    [
        ("print('alone')", True),
        (OWN_STORE, False),
        pytest.param(
            "import torch.distributed as dist; dist.init_process_group('gloo')",
            False,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_copies_that_form_no_group_are_told_at_the_end(
    home: Path, tmp_path: Path, lines: str, is_told: bool
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(lines.format(tmp_path))
    words = ("run", "--nproc-per-node", "2", "train.py")
    viewer = Viewer(home, tmp_path / "project", *words)
    said = viewer.process.communicate(timeout=LIMIT_S)[0].splitlines()
    assert viewer.process.returncode == 0, said
    told = [line for line in said if "no worker formed a process group" in line]
    assert len(told) == is_told, said
    assert "finished on desk" in said[-1]


def test_a_dry_run_of_a_program_without_a_plan_prepares_and_does_not_train(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print('trained')")
    words = ("run", "--dry-run", "--nproc-per-node", "2")
    for here, status in (([], 0), (["--here", "--nodes", "1"], 1)):
        viewer = Viewer(home, tmp_path / "project", *words, *here, "train.py")
        said = viewer.process.communicate(timeout=LIMIT_S)[0]
        assert viewer.process.returncode == status, said
        assert "trained\n" not in said
        assert ("would train" if here else "desk: 2 workers, rank 0 first") in said
    until_s = time.monotonic() + LIMIT_S
    while folders := list(jobs_directory(home).glob("*")):
        assert time.monotonic() < until_s, folders
        time.sleep(0.05)


@pytest.mark.usefixtures("hearing")
def test_a_job_that_another_machine_has_just_started_is_shown_or_asked_about(
    home: Path, tmp_path: Path, screen: Screen
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print('trained')")
    agent = find_agent(home)
    assert agent is not None
    here = next(row for row in agent.snapshot.nodes if row.is_here)
    other = JobMachine(NodeId("a" * 52), "desk (aaaa-aaaa)")
    twin = JobSpec(
        id="train-abc123",
        script="train.py",
        machines=[JobMachine(NodeId(here.node), here.name), other],
        started_on="desk",
    )
    folder = JobFolder(jobs_directory(home) / twin.id)
    folder.make()
    held = folder.lock()
    assert held is not None
    record = JobRecord(
        spec=twin,
        machine="desk",
        state=JobState.RUNNING,
        owner=other.node,
        created_s=time.time() + LIMIT_S,  # a moment ago, however long this takes
        work=str(project),
    )
    folder.write(record)
    (folder.logs / "rank-0.log").write_text("trained on attic\n")
    viewer = Viewer(home, project, "run", "train.py")
    try:
        viewer.wait_for("desk (aaaa-aaaa) has just started this program")
        viewer.wait_for(f"job {twin.id} on desk, desk (aaaa-aaaa)")
        viewer.wait_for("trained on attic")
        assert viewer.end(signal.SIGTERM)[0] == 128 + signal.SIGTERM
    finally:
        viewer.process.kill()
        viewer.process.communicate()
    asked = screen.shows(home, project, "train.py")
    try:
        screen.wait_for(r"desk \(aaaa-aaaa\) has just started.*\(again\)\?")
        os.write(screen.ours, b"again\n")
        screen.wait_for(r"\| \S*trained")
        screen.wait_for(r"job train-\S+ finished on desk")
        assert asked.wait(LIMIT_S) == 0
    finally:
        asked.kill()
        asked.wait(LIMIT_S)
        held.close()


FAILS = """
import torch
import torch.distributed as dist
dist.init_process_group()
if dist.get_rank() == 2:
    raise ValueError("boom on rank 2")
while True:
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
def test_a_failed_job_shows_the_cause_first_and_folds_what_followed(
    home: Path, tmp_path: Path
) -> None:
    """Was: a traceback of GroupAborted from every other rank, often before it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(FAILS)
    run = [*RINGLEADER, "run", "--nproc-per-node", "4", "train.py", "two words"]
    env = {**os.environ, "RINGLEADER_HOME": str(home), "COLUMNS": "80"}

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=project, env=env, capture_output=True, text=True, check=False
        )

    done = ask(*run)
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert said.count("Traceback") == 1, said
    assert said.count("in consequence") == 3, said
    assert said.index("ValueError: boom on rank 2") < said.index("in consequence")
    found = re.search(r"in consequence .*: ringleader logs (\S+)\)", said)
    assert found is not None, said
    job = found[1]
    assert f"job {job} failed: rank 2 on desk failed: ValueError: boom" in done.stderr
    assert ask(*RINGLEADER, "logs", job).stdout.count("Traceback") >= 4
    [row] = [r for r in ask(*RINGLEADER, "jobs").stdout.splitlines() if job in r]
    assert row.endswith("train.py 'two words'"), "one line, as it was typed"


GIT = """#!/bin/sh
touch "$HELD/listing"
while [ ! -e "$HELD/go" ]; do sleep 0.05; done
exec git.real "$@"
"""


@pytest.mark.usefixtures("hearing")
def test_ctrl_c_while_a_job_is_prepared_leaves_nothing(
    home: Path, tmp_path: Path
) -> None:
    """Once while its files are listed, once while the agent is asked.

    A git that waits holds the command, and a stopped agent does not answer.
    """
    project, tools = tmp_path / "project", tmp_path / "tools"
    project.mkdir()
    tools.mkdir()
    (project / "train.py").write_text(SCRIPT)
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    git = shutil.which("git")
    assert git is not None
    (tools / "git.real").symlink_to(git)
    (tools / "git").write_text(GIT)
    (tools / "git").chmod(0o755)
    agent = find_resident(home)
    assert agent is not None
    for is_asked in (False, True):
        held = tmp_path / f"held-{is_asked}"
        held.mkdir()
        said = interrupted(project, home, tools, held, agent.pid if is_asked else 0)
        (line,) = said.splitlines()
        assert re.fullmatch(r"ringleader.*(nothing was started|before it ran)", line)
    until_s = time.monotonic() + LIMIT_S
    while folders := list(jobs_directory(home).glob("*")):
        assert time.monotonic() < until_s, folders
        time.sleep(0.05)


def interrupted(project: Path, home: Path, tools: Path, held: Path, agent: int) -> str:
    """What a command says that Ctrl-C ends while it prepares a job."""
    command = subprocess.Popen(
        [*RINGLEADER, "run", "train.py", "3600"],
        cwd=project,
        env={
            **os.environ,
            "RINGLEADER_HOME": str(home),
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "HELD": str(held),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until_s = time.monotonic() + LIMIT_S
    try:
        while not (held / "listing").exists():
            assert command.poll() is None, command.communicate()[0]
            assert time.monotonic() < until_s
            time.sleep(0.05)
        if agent:
            os.kill(agent, signal.SIGSTOP)
            (held / "go").touch()
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=LIMIT_S)
    finally:
        (held / "go").touch()
        command.kill()
        command.wait(LIMIT_S)
        if agent:
            os.kill(agent, signal.SIGCONT)
    assert command.returncode == 130, said
    return said


def test_words_that_are_not_utf_8_are_refused_before_anything_travels(
    home: Path, tmp_path: Path
) -> None:
    """Names of files are refused by ``collect``, and output is shown with marks."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [*RINGLEADER, "run", "train.py", b"\xff"],
        cwd=tmp_path / "project",
        env={**os.environ, "RINGLEADER_HOME": str(home)},
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    said = done.stderr.decode()
    assert said.count("\n") == 1
    assert "'\\udcff' is not valid UTF-8" in said


@pytest.fixture
def small_disk(home: Path) -> Iterator[Path]:
    """The folder of the jobs, on a disk of 1 MiB."""
    path = jobs_directory(home)
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts file systems")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_loses_output_and_not_the_job(
    home: Path, tmp_path: Path, small_disk: Path
) -> None:
    (tmp_path / "project").mkdir()
    script = "for _ in range(400):\n    print('x' * 9_999, flush=True)\n"
    (tmp_path / "project" / "train.py").write_text(script)
    done = subprocess.run(
        [*RINGLEADER, "run", "--quiet-ranks", "train.py"],
        cwd=tmp_path / "project",
        env={**os.environ, "RINGLEADER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("desk: the disk of ") == 1, done.stderr
    assert re.search(r"job \S+ finished on desk$", done.stderr, re.MULTILINE)
    assert not list(small_disk.glob("*/reserve"))
