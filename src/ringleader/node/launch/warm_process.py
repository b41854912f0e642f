"""A process with torch imported, from which runs are forked: ``ringleader up --warm``.

``python -m ringleader.node.launch.warm_process`` is started by the resident agent with
one end of a socket pair. It imports what ``ringleader run`` needs, tells its name, and
is a fork server from then on. When the agent ends, however it does, it takes no more
runs and ends with the last.
"""

from __future__ import annotations

import socket
import sys

from ringleader.node.launch.fork_server import PRELOADED, serve_forks
from ringleader.node.protocol.socket_handover import take_socket

MODULES = (
    "torch.distributed.launcher.api",
    "ringleader.cli.main",
    "ringleader.cli.run",
    "ringleader.cli.run_command",
    "ringleader.node.launch.elastic_agent",
    *PRELOADED,
)
"""Imported before it is ready; those above this package are found by name."""


def main() -> None:
    """Take over the socket and serve."""
    agent = take_socket(sys.argv[1:])
    agent.setblocking(True)
    serve_forks(agent, MODULES, lambda name: _tell(agent, name))


def _tell(agent: socket.socket, name: str) -> None:
    agent.sendall(f"{name}\n".encode())


if __name__ == "__main__":
    main()
