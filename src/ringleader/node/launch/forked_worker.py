"""A fork of the fork server becomes a worker: as if Python had just started it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from ringleader import settings
from ringleader.node.launch import worker_main
from ringleader.node.launch.end_with_parent import kill_on_death_of_parent
from ringleader.node.launch.fork_client import FORWARDED, LENGTH_BYTES, PEER

RECEIVE_S = 120.0
"""Limit for a client, which sends its request in one go, unless the machine is very
busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A client's command, and what a process inherits from the one that starts it."""

    command: list[str]
    """``python -u worker_main.py PROGRAM...``"""
    streams: list[int]
    variables: dict[str, str]
    directory: str
    cpus: set[int]


def receive(client: socket.socket) -> Request:
    """Return the request of a client.

    Raises ``OSError`` or ``ValueError`` if the client ends early, or belongs to
    another user.
    """
    client.settimeout(RECEIVE_S)
    peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    pid, user, _ = PEER.unpack(peer)
    if user != os.geteuid():
        raise PermissionError(f"process {pid} belongs to user {user}")
    size, streams, _, _ = socket.recv_fds(client, LENGTH_BYTES, 3)
    try:
        return _read_request(client, pid, size, streams)
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise


def _read_request(
    client: socket.socket, pid: int, size: bytes, streams: list[int]
) -> Request:
    left = int.from_bytes(size, "little")
    parts = []
    while left and (part := client.recv(left)):
        parts.append(part)
        left -= len(part)
    client.settimeout(None)
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = [os.fsdecode(line).partition("=") for line in lines if line]
    return Request(
        command=json.loads(b"".join(parts)),
        streams=streams,
        variables={name: value for name, _, value in pairs},
        directory=os.readlink(f"/proc/{pid}/cwd"),
        cpus=os.sched_getaffinity(pid),
    )


def become(request: Request, server: int) -> NoReturn:
    """Run the program of ``request`` in this process, and end as Python would."""
    os.setsid()
    kill_on_death_of_parent(server)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    for stream in request.streams:
        os.close(stream)
    for each in FORWARDED:
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.directory)
    settings.replace_all(request.variables)
    os.sched_setaffinity(0, request.cpus)
    _refresh()
    imports_neighbours = not request.variables.get("PYTHONSAFEPATH")
    _search(request.variables.get("PYTHONPATH", ""), imports_neighbours)
    sys.argv = request.command[2:]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)  # the server blocks them
        worker_main.main(imports_neighbours=imports_neighbours)
    except KeyboardInterrupt as exc:  # the launcher's command must not handle it
        exc = exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next)
        exc = exc.with_traceback(worker_main.without_our_frames(exc))
        sys.excepthook(type(exc), exc, exc.__traceback__)
        raise SystemExit(128 + signal.SIGINT) from None
    raise SystemExit(0)


def _search(folders: str, imports_neighbours: bool) -> None:
    """Import from where a new ``python worker_main.py`` would.

    The path of the server lacks the program's folders, or has some of its own first.
    """
    given = [place for place in folders.split(os.pathsep) if place]
    first = [os.path.dirname(worker_main.__file__)] if imports_neighbours else []
    own = sys.path if sys.flags.safe_path else sys.path[1:]
    sys.path[:] = [*first, *given, *(place for place in own if place not in given)]


def _refresh() -> None:
    """Renew what a new interpreter would have made for itself."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(write_through=True, line_buffering=stream.isatty())
    depth = len(traceback.extract_stack())
    sys.setrecursionlimit(sys.getrecursionlimit() + depth)  # the launcher's calls
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # else all workers would draw the same numbers
    if "torch" in sys.modules:  # which has registered us in another environment
        from ringleader.node.launch.torch_entry_points import autoload

        autoload()
