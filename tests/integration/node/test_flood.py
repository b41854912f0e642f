"""The limits of the agent's acceptor hold under floods of silent connections."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ringleader.deadline import Deadline
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.peering.acceptor import MAX_HALF_OPEN
from ringleader.node.protocol.agent_client import agent_sockets, connect_to_agent
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import GetSnapshot
from ringleader.testing.node_process import make_home
from ringleader.transport.free_ports import free_ports

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux", reason="needs the addresses of 127.0.0.0/8"
    ),
]
FLOOD_S = 1.0
ANSWERS = 5
"""Requests that the agent must answer while the flood lasts."""
MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_addresses", "said"), [(9, ""), (120, ""), (120, "\x16\x03\x01")]
)
def test_a_flood_of_connections_takes_bounded_memory_and_descriptors(
    tmp_path: Path, num_addresses: int, said: str
) -> None:
    home = make_home(tmp_path / "home", os.urandom(32))
    (port,) = free_ports(1)
    config = AgentConfig(
        home=str(home), interfaces=["lo"], profile="loopback", port=port
    )
    with AgentProcess.start(config) as agent:
        process = psutil.Process(agent.pid)
        ask(home)
        memory, descriptors = process.memory_info().rss, process.num_fds()
        most_memory, most_descriptors = memory, descriptors
        command = [sys.executable, "-m", "tests.kit.connection_flood"]
        arguments = [str(port), str(num_addresses), str(11 * MAX_HALF_OPEN), said]
        with subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as flood:
            assert flood.stdin is not None
            assert flood.stdout is not None
            assert flood.stdout.readline() == "started\n"
            until_s, answers = time.monotonic() + FLOOD_S, 0
            while answers < ANSWERS or time.monotonic() < until_s:
                ask(home)
                answers += 1
                most_memory = max(most_memory, process.memory_info().rss)
                most_descriptors = max(most_descriptors, process.num_fds())
            assert flood.poll() is None, "they were answered during the flood"
            flood.stdin.close()
            num_connections = int(flood.stdout.readline())
        assert num_connections > 10 * MAX_HALF_OPEN, "there was no flood"
        assert most_memory - memory < 32 * MIB
        assert most_descriptors - descriptors < MAX_HALF_OPEN + 16


def ask(home: Path) -> None:
    """Ask the agent as ``ringleader status`` does."""
    (path,) = agent_sockets(home)
    client = connect_to_agent(path, Deadline.after(120))
    assert client is not None
    try:
        client.ask(GetSnapshot(), Deadline.after(120))
    finally:
        client.close()
