"""Gives a worker its own output before it starts: a pipe or terminal of its job.

Started by its path, as ``python worker_output.py SOCKET COMMAND...``. It tells the
job's supervisor its rank, takes standard output and standard error from it, and becomes
``COMMAND``. If the supervisor does not answer, the worker keeps the launcher's output.
Runs without site packages, in some 20 ms; it may import nothing else of ringleader.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

ANSWER_S = 120.0
"""A supervisor that has ended refuses at once."""
MAX_PATH_BYTES = 100


def with_own_output(command: Sequence[str], path: str) -> list[str]:
    """Return a command that runs ``command`` with its output from the socket."""
    if not hasattr(socket, "send_fds"):  # Windows: the launcher's output
        return list(command)
    return [sys.executable, "-I", "-S", __file__, path, *command]


def take_output(path: str, rank: str) -> None:
    """Replace standard output and standard error by what the socket gives."""
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.settimeout(ANSWER_S)
        if len(os.fsencode(path)) > MAX_PATH_BYTES and os.path.isdir("/proc/self/fd"):
            folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                supervisor.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
            finally:
                os.close(folder)
        else:
            supervisor.connect(path)
        supervisor.sendall(f"{rank}\n".encode())
        _, given, _, _ = socket.recv_fds(supervisor, 1, 1)
    if not given:
        raise OSError("the supervisor gave no output")
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(given[0], 1)
    os.dup2(given[0], 2)
    os.close(given[0])


def main(path: str, command: list[str]) -> None:
    """Take the output, and become ``command``."""
    try:
        take_output(path, os.getenv("RANK", "0"))
    except OSError as exc:
        text = f"this rank has no log of its own ({exc})"
        sys.stderr.write(f"ringleader: {text}\n")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
