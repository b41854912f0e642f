"""free_ports finds TCP ports for processes that are started on this machine."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from ringleader.errors import ConfigError

_PORTS = range(20_000, 32_768)
"""Below the range that systems give to outgoing connections (from 32768 on Linux,
from 49152 elsewhere), so that none of those takes a port between our check and its
use."""
_NUM_PARTS = 32
_turns: dict[int, Iterator[int]] = {}
"""This process's id -> the ports that it tries, in turn; a fork gets its own."""
_held: list[int] = []
"""Descriptors of the ports that show whose a part is, until this process ends."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nobody listens.

    A port that was returned is not returned again soon, as it may not be in use yet.
    Another program may take one before it is used; the process that wanted it then
    reports the error.
    """
    found = list[int]()
    with ExitStack() as stack:
        for port in itertools.islice(_own_ports(), len(_PORTS) // _NUM_PARTS):
            if len(found) == count:
                return found
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    if len(found) < count:
        raise ConfigError(f"no {count} free ports from {_PORTS[0]} to {_PORTS[-1]}")
    return found


def _own_ports() -> Iterator[int]:
    """Return the part of the ports that this process tries, endlessly, in turn.

    Random ports of the whole range met once in a hundred runs.
    """
    pid = os.getpid()
    if pid not in _turns:
        width = len(_PORTS) // _NUM_PARTS
        first = _own_part(width) * width
        start = random.SystemRandom().randrange(width)
        mine = [_PORTS[first + (start + i) % width] for i in range(width)]
        _turns.setdefault(pid, itertools.cycle(mine))  # two threads may come at once
    return _turns[pid]


def _own_part(width: int) -> int:
    """Return a part that no other process has: whoever holds its first port has it.

    By its id a process would share one with another: in two of three runs of eight.
    """
    for i in range(_NUM_PARTS):
        part = (os.getpid() + i) % _NUM_PARTS
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", _PORTS[part * width]))
        except OSError:
            held.close()
        else:
            _held.append(held.detach())
            return part
    return os.getpid() % _NUM_PARTS  # more processes than parts
