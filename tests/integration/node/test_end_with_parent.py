"""Workers end with the command that started them, also if that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ringleader.testing.node_process import make_home
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals"),
]

WORKER = """
import os, sys, time
os.write(1, " ".join(["worker", str(os.getpid()), *sys.argv[1:]]).encode() + b"\\n")
time.sleep(3600)
"""


def has_ended(pid: int, within_s: float = 60.0) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_kill_9_of_ringleader_run_ends_its_workers(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WORKER)
    home = make_home(tmp_path / "home", os.urandom(32))
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    env = {**os.environ, "RINGLEADER_HOME": str(home)}
    options = ["--nodes", "1", "--nproc-per-node", "2", "--interface", loopback]
    command = ["-m", "ringleader.cli.main", "run", *options, str(script), "--lr", "1"]
    process = warm_python.popen(*command, env=env)
    try:
        lines: list[str] = []
        while len(workers := [s for s in lines if s.startswith("worker ")]) < 2:
            lines.append(process.stdout.readline())
            assert lines[-1], f"the command ended: {lines}"
        pids = [int(line.split()[1]) for line in workers]
        assert all(line.split()[2:] == ["--lr", "1"] for line in workers)
        assert not has_ended(pids[0], within_s=0.5)
    finally:
        process.kill()
        process.wait(60)
    assert [pid for pid in pids if not has_ended(pid)] == []
    process.communicate(60)  # the agent has closed its end of the output as well


PARENT = """
import subprocess, sys
from ringleader.node.launch import end_with_parent as launcher
# "sys.platform" of a system without death signals: the watcher takes its place.
file = open(launcher.__file__).read().replace('sys.platform == "linux"', "False")
command = ["-I", "-S", "-c", file, str(__import__("os").getpid()), sys.executable]
worker = subprocess.Popen([sys.executable, *command, "-c", sys.argv[1]])
sys.stdin.read(1)
worker.kill()
worker.wait()
"""


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:  # another test's, which has ended
        return -1


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "calm"])
def test_without_death_signals_a_process_watches(is_killed: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own: others run this test, too
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline().split()[1])
        group = os.getpgid(worker)
        watchers = [
            each.pid
            for each in psutil.process_iter(["cmdline"])
            if each.pid not in (worker, parent.pid)
            and "_PR_SET_PDEATHSIG" in " ".join(each.info["cmdline"] or ())
            and group_of(each.pid) == group
        ]
        assert len(watchers) == 1
        assert psutil.Process(worker).children() == [], (
            "it has no child it did not start"
        )
        if is_killed:
            parent.kill()
        else:
            parent.communicate("\n", timeout=300)
    assert has_ended(worker)
    assert has_ended(watchers[0])
