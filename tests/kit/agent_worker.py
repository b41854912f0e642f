"""Runs an agent and answers each line on stdin with its snapshot as JSON."""

from __future__ import annotations

import json
import os
import sys

import msgspec

from ringleader import settings
from ringleader.deadline import Deadline
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import GetSnapshot


def main() -> None:
    """Run ``agent_worker.py NAME [PEERS]``."""
    config = AgentConfig(
        home=str(settings.home_directory()),
        name=sys.argv[1],
        peers=sys.argv[2] if len(sys.argv) > 2 else "",
        interfaces=settings.interfaces(),
    )
    with AgentProcess.start(config) as agent:
        up = {"event": "up", "agent": agent.pid, "pid": os.getpid()}
        sys.stdout.write(json.dumps(up) + "\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            reply = agent.ask(GetSnapshot(), Deadline.after(60.0))
            line = {"event": "look", **msgspec.to_builtins(reply)}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
