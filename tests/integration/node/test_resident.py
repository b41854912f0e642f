"""``ringleader up``: an agent that stays, which ``run`` uses, until ``down``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.log_limit import MAX_BYTES
from ringleader.node.launch.fork_server import can_fork
from ringleader.node.launch.resident_agent import (
    connect_to_resident,
    find_resident,
    stop_resident,
)
from ringleader.node.protocol.agent_config import run_directory
from ringleader.node.protocol.local_requests import CheckRound, EnterJob, RoundEntered
from ringleader.node.protocol.resident_record import LOG, is_resident_alive
from ringleader.simulation.lan import can_make_lan, lan
from ringleader.testing.node_process import make_home
from tests.kit.machines import RINGLEADER, Machines, status_of
from tests.kit.warm_python import WarmPython

LIMIT_S = 120.0
CONNECT_AS_NOBODY = """
import os, socket
os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(60)
sock.connect("open.sock")
print(sock.recv(1))
"""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(slots=True)
class Machine:
    """A machine of its own in the same cluster, as far as commands can tell."""

    home: Path
    python: WarmPython

    def environment(self) -> dict[str, str]:
        """Return the environment of commands on it."""
        return {
            **os.environ,
            "RINGLEADER_HOME": str(self.home),
            "RINGLEADER_NAME": self.home.name,
            "RINGLEADER_INTERFACES": LOOPBACK,
        }

    def run(self, *words: str, status: int = 0) -> str:
        """Run a command without a terminal and return what it printed."""
        env = self.environment()
        command = self.python.popen("-m", "ringleader.cli.main", *words, env=env)
        said, _ = command.communicate(timeout=LIMIT_S)
        assert command.returncode == status, said
        return said

    def up(self, *words: str) -> dict[str, Any]:
        """Bring it up and return what its agent knows."""
        flags = ("--profile", "loopback", "--wait", "0", "--json")
        said = self.run("up", *flags, *words)
        found: dict[str, Any] = json.loads(said[said.index("{") :])
        return found

    @property
    def pid(self) -> int:
        found = find_resident(self.home)
        assert found is not None, "no agent is up"
        return found.pid


@pytest.fixture
def machine(tmp_path: Path, warm_python: WarmPython) -> Iterator[Machine]:
    made = Machine(make_home(tmp_path / "m0", os.urandom(32)), warm_python)
    yield made
    stop_resident(made.home)


def wait_until_dead(home: Path) -> None:
    deadline = Deadline.after(LIMIT_S)
    while is_resident_alive(home):
        assert not deadline.is_over()
        time.sleep(0.02)


def here(seen: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in seen["nodes"] if row["is_here"])
    return row


def test_it_stays_until_down_and_a_killed_one_blocks_nothing(machine: Machine) -> None:
    """One agent per user, also for two that start at once. Jobs are refused as long as
    nobody could be asked, and the answer is remembered and changed at once."""
    first = machine.up()
    assert first["is_resident"]
    assert not here(first)["accepts_jobs"], "there was no terminal to ask"
    assert here(machine.up("--jobs"))["accepts_jobs"], "it holds at once"
    assert "Already up" in machine.run("up", "--wait", "0")
    assert machine.pid == first["pid"]
    assert "started without this --peers" in machine.run(
        "up", "--peers", "10.0.0.9", status=2
    )
    os.kill(first["pid"], signal.SIGKILL)
    wait_until_dead(machine.home)
    again = machine.up()
    assert again["pid"] != first["pid"]
    assert here(again)["accepts_jobs"], "remembered"
    names = {path.name for path in run_directory(machine.home).iterdir()}
    assert not [name for name in names if name.startswith(str(first["pid"]))]
    assert "stop it first (ringleader down)" in machine.run("leave", "--yes", status=2)
    assert f"process {again['pid']} has left" in machine.run("down")
    assert not is_resident_alive(machine.home)
    assert "No agent" in machine.run("down")


def test_a_process_takes_part_in_jobs_through_it_and_leaves_when_it_ends(
    machine: Machine,
) -> None:
    machine.up("--no-jobs")
    record = find_resident(machine.home)
    assert record is not None
    request = EnterJob(job="one", min_nodes=1, max_nodes=1, wait_s=0, timeout_s=LIMIT_S)
    client = connect_to_resident(machine.home, record)
    other = connect_to_resident(machine.home, record)
    assert client is not None
    assert other is not None
    with client, other:
        entered = client.ask(request, Deadline.after(LIMIT_S))
        assert isinstance(entered, RoundEntered)
        with pytest.raises(ConfigError, match="another process on this machine"):
            other.ask(request, Deadline.after(LIMIT_S))
        with pytest.raises(ConfigError, match="does not take part"):
            other.ask(CheckRound("one"), Deadline.after(LIMIT_S))
        client.shutdown()  # as the kernel does for a process that is killed
        deadline = Deadline.after(LIMIT_S)
        while True:
            try:
                assert isinstance(
                    other.ask(request, Deadline.after(LIMIT_S)), RoundEntered
                )
                break
            except ConfigError:
                assert not deadline.is_over(), "the job outlived its process"
                time.sleep(0.02)


def test_its_log_is_kept_over_restarts_and_never_grows_long(machine: Machine) -> None:
    machine.up()
    log = run_directory(machine.home) / LOG
    before = log.with_name(f"{LOG}.1")
    with open(log, "ab") as others:  # as a process that it started
        others.write(b"first\n" + b"x" * MAX_BYTES + b"last\n")
        deadline = Deadline.after(LIMIT_S)
        while log.stat().st_size:
            assert not deadline.is_over()
            time.sleep(0.02)
        others.write(b"more\n")
    assert before.read_bytes().endswith(b"xlast\n")
    assert before.stat().st_size == MAX_BYTES
    assert before.stat().st_mode & 0o077 == 0
    machine.run("down")
    machine.up()
    assert log.read_bytes().startswith(b"more\n"), "why the last one ended"


WARM_SCRIPT = """
import os, sys, time
import neighbour, torch
print("started by", sys.orig_argv[-2], neighbour.VALUE, flush=True)
while not os.path.exists("go on"):
    time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="needs Linux and pidfd")
def test_a_warm_run_finishes_although_the_agent_is_killed(
    machine: Machine, tmp_path: Path
) -> None:
    """It is a fork of a process that has torch, finds the modules beside its script,
    and that process ends when nobody needs it."""
    (folder := tmp_path / "program").mkdir()
    (folder / "train.py").write_text(WARM_SCRIPT)
    (folder / "neighbour.py").write_text("VALUE = 'beside'")
    agent = machine.up("--no-jobs", "--warm")["pid"]
    deadline = Deadline.after(LIMIT_S)
    while not (find_resident(machine.home) or pytest.fail("it ended")).warm:
        assert not deadline.is_over()
        time.sleep(0.05)
    assert "Warm: " in machine.run("up", "--wait", "0")
    children = psutil.Process(agent).children()
    (warm,) = (each for each in children if "warm_process" in str(each.cmdline()))
    words = [sys.executable, "-m", "ringleader", "run", "--here", "--nodes", "1"]
    run = subprocess.Popen(
        [*words, "train.py"],
        cwd=folder,
        env=machine.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    with run:
        said = run.stdout.readline()
        os.kill(agent, signal.SIGKILL)
        wait_until_dead(machine.home)
        (folder / "go on").touch()
        assert run.wait(LIMIT_S) == 0
    assert said == "started by ringleader.node.launch.warm_process beside\n"
    psutil.wait_procs([warm], timeout=LIMIT_S)
    assert not warm.is_running()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root")
def test_another_local_user_cannot_talk_to_it(machine: Machine, tmp_path: Path) -> None:
    """Neither through the folder nor, if somebody opened that, through the socket."""
    machine.up("--jobs")
    record = find_resident(machine.home)
    assert record is not None
    folder = run_directory(machine.home)
    assert folder.stat().st_mode & 0o077 == 0
    # Moved where anybody may go, with rights for all: only the kernel's word is left.
    os.link(folder / record.socket, tmp_path / "open.sock")
    (tmp_path / "open.sock").chmod(0o777)
    tmp_path.chmod(0o711)
    words = [sys.executable, "-I", "-S", "-c", CONNECT_AS_NOBODY]
    done = subprocess.run(
        words,
        cwd=tmp_path,  # entered as root: the folders above stay closed
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout == "b''\n", f"not closed at once: {done.stderr}"


SCRIPT = """
import time, torch
import torch.distributed as dist

dist.init_process_group("ringleader")
print(f"world of {dist.get_world_size()}", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_runs_use_it_and_a_killed_one_is_missed_while_its_machine_stays(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """Three machines: no run adds a node. The others of a killed run go on without it,
    and hear of what happens to the cluster."""
    flags = ("--min-nodes", "2", "--wait", "0", str(tmp_path / "train.py"))
    with (
        lan(hosts=3) as net,
        Machines.with_script(net, tmp_path, warm_python, SCRIPT) as machines,
    ):
        for index in range(3):
            up = machines.start(index, *RINGLEADER, "up", "--no-jobs")
            assert up.end() == 0, up.lines
        runs = [machines.run(index, *flags) for index in range(3)]
        for run in runs:
            run.wait_for("world of 3")
        assert {row["name"] for row in status_of(machines, 0)["nodes"]} == {
            *("m0", "m1", "m2"),
        }
        marks = [len(run.lines) for run in runs]
        runs[2].signal(signal.SIGKILL)
        for run, mark in zip(runs[:2], marks, strict=False):
            run.wait_for("world of 2", after=mark)
        rows = {row["name"]: row for row in status_of(machines, 0)["nodes"]}
        assert rows["m2"]["health"] == "healthy"
        assert rows["m2"]["jobs"] == []
        down = machines.start(2, *RINGLEADER, "down")
        assert down.end() == 0, down.lines
        for run in runs[:2]:
            run.wait_for("m2 (")  # ... left
