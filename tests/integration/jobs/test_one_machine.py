"""``ringleader run`` with an agent that is up, on one machine, in a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.node.launch.resident_agent import start_resident, stop_resident
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.testing.node_process import make_home
from tests.kit.machines import RINGLEADER

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")

LIMIT_S = 240.0
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

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
    made = make_home(tmp_path / "home", os.urandom(32))
    record = start_resident(
        AgentConfig(
            home=str(made),
            interfaces=[LOOPBACK],
            profile="loopback",
            name="desk",
            is_resident=True,
            accepts_jobs=True,
        )
    )
    yield made
    stop_resident(made)
    os.waitpid(record.pid, 0)  # it was a child of this process


class Screen:
    """A terminal of 100 columns, and what was written to it."""

    def __init__(self) -> None:
        import pty  # not on Windows
        import termios

        self.ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (30, 100))
        os.set_blocking(self.ours, False)
        self.text = ""

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


def test_rank_0_has_a_terminal_and_ctrl_c_stops_all(
    home: Path, tmp_path: Path, screen: Screen
) -> None:
    project = tmp_path / "Projekt"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    command = subprocess.Popen(
        [*RINGLEADER, "run", "--nproc-per-node", "2", "train.py", "3600"],
        cwd=project,
        env={**os.environ, "RINGLEADER_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=screen.theirs,
        stderr=screen.theirs,
    )
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
