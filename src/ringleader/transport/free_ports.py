"""Free TCP ports on this machine, for processes that we start ourselves."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

from ringleader.errors import ConfigError

_PORTS = range(20_000, 32_768)
"""Below what systems give to outgoing connections (Linux from 32768 on, others from
49152 on): none of them takes a port between our look and its use."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 nobody listens on. Another program may take one before we do:
    then who was to have it says so."""
    dice, found = random.SystemRandom(), list[int]()
    with ExitStack() as stack:
        for _ in range(100 * count):
            if len(found) == count:
                return found
            port = dice.choice(_PORTS)
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    if len(found) < count:
        raise ConfigError(f"no {count} free ports from {_PORTS[0]} to {_PORTS[-1]}")
    return found
