"""A machine that is up: a resident agent on the loopback, in a home of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringleader.node.launch.resident_agent import start_resident, stop_resident
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.testing.node_process import make_home

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@contextmanager
def resident_machine(folder: Path, *, accepts_jobs: bool = True) -> Iterator[Path]:
    """Yield the home of a machine called desk, alone in a cluster; ends its agent."""
    home = make_home(folder / "home", os.urandom(32))
    record = start_resident(
        AgentConfig(
            home=str(home),
            interfaces=[LOOPBACK],
            profile="loopback",
            name="desk",
            is_resident=True,
            accepts_jobs=accepts_jobs,
        )
    )
    try:
        yield home
    finally:
        stop_resident(home)
        os.waitpid(record.pid, 0)  # it was a child of this process
