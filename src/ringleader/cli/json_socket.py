"""JsonSocket carries one JSON object per line between a command and its workers.

Both ends trust each other: the socket is in a private temporary directory of the user.
Lines are bounded all the same, so that a broken worker cannot exhaust memory. A Unix
socket also crosses network namespaces, which a loopback port does not.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerLost, ProtocolError

Message = dict[str, object]
"""A flat JSON object: a task for the worker or its result."""

MAX_LINE_BYTES = 16 << 20
"""Longest line: many times the parameters of the demo model in base64."""

IDLE_LIMIT_S = 3600.0
"""How long a worker waits for a task; if its parent dies it ends much sooner."""

_SEND_S = 30.0
"""If the parent reads nothing for this long, the worker gives up."""

_BLOCK_BYTES = 64 << 10


class JsonSocket:
    """One end of the connection. Not thread-safe."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._sock = sock
        self._pending = bytearray()
        self._ended = False
        self.peer = peer

    def fileno(self) -> int:
        """Return the descriptor; ``poll`` may have a message when it is readable."""
        return self._sock.fileno()

    def send(self, message: Message, deadline: Deadline) -> None:
        """Send one message; raises PeerLost if the other end is closed."""
        self._sock.settimeout(max(deadline.left_s(), 0.001))
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except TimeoutError as exc:
            raise DeadlineExceeded(
                self.peer, "does not read its control socket"
            ) from exc
        except OSError as exc:
            raise PeerLost(self.peer, f"control socket broken: {exc}") from exc

    def poll(self) -> Message | None:
        """Return the next complete message or None; reads at most one block."""
        if (message := self._take()) is not None:
            return message
        self._sock.settimeout(0)
        try:
            block = self._sock.recv(_BLOCK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            block = b""
        self._ended = not block
        self._pending += block
        if len(self._pending) > MAX_LINE_BYTES:
            raise ProtocolError(
                self.peer, f"sent a line longer than {MAX_LINE_BYTES} bytes"
            )
        return self._take()

    def has_ended(self) -> bool:
        """Whether the other end is closed."""
        return self._ended

    def receive(self, deadline: Deadline) -> Message | None:
        """Wait for a message; return None if the other end is closed."""
        while (message := self.poll()) is None:
            if self._ended:
                return None
            if deadline.is_over():
                what = f"no message on the control socket in {deadline.after_s:g} s"
                raise DeadlineExceeded(self.peer, what)
            select.select([self._sock], [], [], deadline.left_s())
        return message

    def close(self) -> None:
        """Close this end; the other end reads end-of-file."""
        self._sock.close()

    def _take(self) -> Message | None:
        text, newline, rest = self._pending.partition(b"\n")
        if not newline:
            return None
        self._pending = rest
        message: Message = json.loads(text)
        return message


def listen(directory: Path) -> tuple[socket.socket, str]:
    """Return a listening socket and the address to pass to ``connect``."""
    if hasattr(socket, "AF_UNIX"):
        path = str(directory / "control")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path)
        sock.listen(128)
        return sock, f"unix:{path}"
    sock = socket.create_server(("127.0.0.1", 0), backlog=128)  # Windows
    return sock, f"tcp:{sock.getsockname()[1]}"


def connect(address: str, deadline: Deadline) -> JsonSocket:
    """Connect a worker to the address that its parent listens on."""
    kind, _, where = address.partition(":")
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(deadline.left_s())
        sock.connect(where)
    else:
        sock = socket.create_connection(("127.0.0.1", int(where)), deadline.left_s())
    return JsonSocket(sock, "the parent")


Report = Callable[[Message], None]
"""Sends an intermediate message to the parent before a task is finished."""


def serve(
    address: str, hello: Message, handle: Callable[[Message, Report], Message]
) -> None:
    """Run a worker: connect, then handle tasks until told to leave or orphaned.

    An exception of ``handle`` is sent to the parent, which decides what to do.
    """
    control = connect(address, Deadline.after(_SEND_S))
    control.send({**hello, "pid": os.getpid()}, Deadline.after(_SEND_S))

    def report(message: Message) -> None:
        control.send(message, Deadline.after(_SEND_S))

    while (task := control.receive(Deadline.after(IDLE_LIMIT_S))) is not None:
        if task.get("do") == "leave":
            return
        try:
            reply = handle(task, report)
        except Exception as exc:  # noqa: BLE001 - reported to the parent
            reply = {"error": f"{type(exc).__name__}: {exc}"}
        report(reply)
