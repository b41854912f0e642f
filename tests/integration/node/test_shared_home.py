"""Machines that share a home directory leave each other's agents alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ringleader.deadline import Deadline
from ringleader.node.protocol.agent_client import connect_to_agent
from ringleader.node.protocol.local_requests import GetSnapshot
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.simulation.lan import can_make_lan
from ringleader.testing.node_process import make_home
from tests.kit import agent_worker

pytestmark = [
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare"),
]


@contextmanager
def machine(home: Path, host: str) -> Iterator[subprocess.Popen[str]]:
    """Run an agent with its own host name and process ids, as in a container.

    Killing the process kills everything in it.
    """
    inside = f"hostname {host} && exec {sys.executable} {agent_worker.__file__} {host}"
    command = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c"]
    with subprocess.Popen(
        [*command, inside],
        env={
            **os.environ,
            "RINGLEADER_HOME": str(home),
            "RINGLEADER_INTERFACES": "lo",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "up"
            yield process
        finally:
            process.kill()


def nodes(home: Path) -> set[str]:
    """Ask all agents through their sockets; return their node ids."""
    found = set()
    for path in (home / "run").rglob("*.sock"):
        client = connect_to_agent(path, Deadline.after(60))
        assert client is not None, f"nobody listens at {path}"
        try:
            reply = client.ask(GetSnapshot(), Deadline.after(60))
        finally:
            client.close()
        assert isinstance(reply, Snapshot)
        found.add(reply.node)
    return found


def credentials(home: Path) -> set[Path]:
    return set((home / "run").rglob("*.credentials"))


@pytest.mark.slow
@pytest.mark.parametrize("second", ["attic", "cellar"])
def test_an_agent_removes_only_files_of_dead_agents_of_its_own_host(
    tmp_path: Path, second: str
) -> None:
    """Also if two containers have one name: their locks tell who is alive."""
    home = make_home(tmp_path / "home", os.urandom(32))
    with ExitStack() as stack:
        first = stack.enter_context(machine(home, "attic"))
        (kept,) = credentials(home)
        stack.enter_context(machine(home, second))
        assert kept in credentials(home)
        assert len(nodes(home)) == len(credentials(home)) == 2
        first.send_signal(signal.SIGKILL)
        first.wait(60)
        assert len(credentials(home)) == 2, "kill -9 leaves files"
        stack.enter_context(machine(home, "attic"))
        assert kept not in credentials(home)
        assert len(nodes(home)) == len(credentials(home)) == 2
