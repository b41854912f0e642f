"""Stands for one worker of the fork server: same input and output, same end.

Started by its path, as ``python fork_client.py NAME COMMAND...``. It asks the server
for a worker, passes signals on to it, and ends as the worker ends. If there is no
server, it becomes ``COMMAND``. Runs without site packages, in some 20 ms; it may import
nothing else of ringleader.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from types import FrameType

LENGTH_BYTES = 4
STATUS_BYTES = 4
PEER = struct.Struct("3i")
"""Process, user and group of the peer of a Unix socket."""
FORWARDED = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # this module is imported on Windows, too
]


def main(name: str, command: list[str]) -> None:
    """Run ``command`` as a worker of the server ``name``, and end like it."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(f"\0{name}")
        _check_owner(server)
    except OSError as exc:
        text = f"no fork server {name} ({exc}); this worker imports torch itself"
        sys.stderr.write(f"ringleader: {text}\n")
        os.execv(command[0], command)

    def forward(number: int, _frame: FrameType | None) -> None:
        server.send(bytes([number]))

    _request(server, command)
    for each in FORWARDED:  # from now on bytes are signals
        signal.signal(each, forward)
    reply = b""
    while len(reply) < STATUS_BYTES and (part := server.recv(STATUS_BYTES)):
        reply += part
    if len(reply) < STATUS_BYTES:
        sys.exit("ringleader: the fork server ended before this worker")
    _end_like(os.waitstatus_to_exitcode(int.from_bytes(reply, "little")))


def _check_owner(server: socket.socket) -> None:
    """Raise ``OSError`` unless our own user listens there.

    Anybody may take a name in the abstract namespace once its server has ended, and
    would get our streams and our command, and decide how we end.
    """
    peer = server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    pid, user, _ = PEER.unpack(peer)
    if user != os.geteuid():
        raise PermissionError(f"process {pid} of user {user} has taken its name")


def _request(server: socket.socket, command: list[str]) -> None:
    """Send the command with our streams; /proc tells what else a process inherits."""
    body = json.dumps(command).encode()
    size = len(body).to_bytes(LENGTH_BYTES, "little")
    socket.send_fds(server, [size], [_open_stream(number) for number in range(3)])
    server.sendall(body)


def _open_stream(number: int) -> int:
    try:
        os.fstat(number)
    except OSError:  # closed, as in some daemons
        return os.open(os.devnull, os.O_RDWR)
    return number


def _end_like(code: int) -> None:
    """Exit with ``code``; a negative one is the signal that ended the worker."""
    if code >= 0:
        sys.exit(code)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker has dumped its own
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
