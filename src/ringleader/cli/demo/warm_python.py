"""``warm_python``: Python processes of the demo that share one import of torch."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerFailed
from ringleader.node.launch import worker_main
from ringleader.node.launch.fork_server import can_fork, fork_command
from ringleader.node.protocol.socket_handover import start_with_socket

IMPORT_S = 600.0
"""Against hangs only: an import takes 4 s of a core, and its end is noticed at once."""
_POLL_S = 0.2

PythonCommand = Callable[..., list[str]]
"""From the words after ``python`` to the command that runs them."""


@contextmanager
def warm_python(log: Path, on_wait: Callable[[], None]) -> Iterator[PythonCommand]:
    """Yield what makes commands of forks of one process, which has imported torch.

    Where the system cannot fork such a process, they are new interpreters. No command
    has the current folder on its path: a file there may be called like a module of
    torch. ``on_wait`` is called several times a second until torch is imported.
    """
    if not can_fork():
        yield lambda *words: [sys.executable, "-P", *words]
        return
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "ringleader.node.launch.warm_process"]
    with ours, log.open("wb") as file:
        with theirs:
            process = start_with_socket(command, theirs, log=file)
        try:
            name = _receive_name(ours, log, on_wait)
            program = [sys.executable, "-u", worker_main.__file__]
            yield lambda *words: fork_command(name, [*program, *words])
        finally:
            ours.close()  # it ends with the last of its forks
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
            process.kill()
            process.wait()


def _receive_name(sock: socket.socket, log: Path, on_wait: Callable[[], None]) -> str:
    deadline, said = Deadline.after(IMPORT_S), b""
    who = "the process that imports torch"
    while not said.endswith(b"\n"):
        on_wait()
        if deadline.is_over():
            raise DeadlineExceeded(who, f"is not ready after {IMPORT_S:g} s")
        if select.select([sock], [], [], _POLL_S)[0]:
            part = sock.recv(256)
            if not part:
                text = log.read_text(encoding="utf-8", errors="replace")
                raise PeerFailed(who, f"has ended; it printed:\n{text}")
            said += part
    return said.decode().strip()
