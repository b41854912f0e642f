"""Free TCP ports on this machine, for processes that a command starts itself."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on. Another program may take one before we do: then the
    group says so, and the command is simply run again."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [server.getsockname()[1] for server in servers]
