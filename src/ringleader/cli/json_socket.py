"""One JSON object per line over a local socket: how a command talks to its workers.

Both ends trust each other: the socket lies in a private temporary directory of the
user. Lines are bounded all the same, so that a broken worker cannot fill the memory.
A Unix socket also crosses network namespaces, which a loopback port does not.
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
"""What travels: flat JSON, every message carries what to do or what was found."""

MAX_LINE_BYTES = 16 << 20
"""The longest line: parameters of a demo model in base64 fit many times over."""

IDLE_LIMIT_S = 3600.0
"""How long a worker waits for its next task; its parent's death ends it much sooner."""

_SEND_S = 30.0
"""A parent that reads nothing for this long is stuck: the worker gives up."""

_BLOCK_BYTES = 64 << 10


class JsonSocket:
    """One end of the conversation. One thread at a time may use it."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._sock = sock
        self._pending = bytearray()
        self._ended = False
        self.peer = peer

    def fileno(self) -> int:
        """For a selector; readable means that ``poll`` may find something."""
        return self._sock.fileno()

    def send(self, message: Message, deadline: Deadline) -> None:
        """Send one message; raises PeerLost when nobody listens any more."""
        self._sock.settimeout(max(deadline.left_s(), 0.001))
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except TimeoutError as exc:
            raise DeadlineExceeded(self.peer, "does not read its control line") from exc
        except OSError as exc:
            raise PeerLost(self.peer, f"control line broken: {exc}") from exc

    def poll(self) -> Message | None:
        """The next whole message if one is there; reads at most one block."""
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
            raise ProtocolError(self.peer, f"line longer than {MAX_LINE_BYTES} bytes")
        return self._take()

    def has_ended(self) -> bool:
        """Whether the other side closed its end."""
        return self._ended

    def receive(self, deadline: Deadline) -> Message | None:
        """Wait for a message; None when the other side closed its end."""
        while (message := self.poll()) is None:
            if self._ended:
                return None
            if deadline.is_over():
                what = f"no message on the control line in {deadline.after_s:g} s"
                raise DeadlineExceeded(self.peer, what)
            select.select([self._sock], [], [], deadline.left_s())
        return message

    def close(self) -> None:
        """Close this end; the other side reads the end of the line."""
        self._sock.close()

    def _take(self) -> Message | None:
        text, newline, rest = self._pending.partition(b"\n")
        if not newline:
            return None
        self._pending = rest
        message: Message = json.loads(text)
        return message


def listen(directory: Path) -> tuple[socket.socket, str]:
    """A listening socket and the address to give to ``connect``."""
    if hasattr(socket, "AF_UNIX"):
        path = str(directory / "control")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path)
        sock.listen(128)
        return sock, f"unix:{path}"
    sock = socket.create_server(("127.0.0.1", 0), backlog=128)  # Windows
    return sock, f"tcp:{sock.getsockname()[1]}"


def connect(address: str, deadline: Deadline) -> JsonSocket:
    """The worker's end of the line that its parent listens on."""
    kind, _, where = address.partition(":")
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(deadline.left_s())
        sock.connect(where)
    else:
        sock = socket.create_connection(("127.0.0.1", int(where)), deadline.left_s())
    return JsonSocket(sock, "the parent")


Report = Callable[[Message], None]
"""How a task tells the parent something before it is finished."""


def serve(
    address: str, hello: Message, handle: Callable[[Message, Report], Message]
) -> None:
    """A worker's life: say hello, do what is asked, until told to leave or orphaned.

    An error becomes an answer too; what follows it is up to the parent.
    """
    control = connect(address, Deadline.after(_SEND_S))
    control.send({**hello, "pid": os.getpid()}, Deadline.after(_SEND_S))

    def report(message: Message) -> None:
        control.send(message, Deadline.after(_SEND_S))

    while (task := control.receive(Deadline.after(IDLE_LIMIT_S))) is not None:
        if task.get("do") == "leave":
            return
        try:
            answer = handle(task, report)
        except Exception as exc:  # noqa: BLE001 - the top of a worker: report, go on
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        report(answer)
