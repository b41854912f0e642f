"""free_ports finds TCP ports for processes that are started on this machine."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

from ringleader.errors import ConfigError

_PORTS = range(20_000, 32_768)
"""Below the range that systems give to outgoing connections (from 32768 on Linux,
from 49152 elsewhere), so that none of those takes a port between our check and its
use."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nobody listens.

    Another program may take one before it is used; the process that wanted it then
    reports the error.
    """
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
