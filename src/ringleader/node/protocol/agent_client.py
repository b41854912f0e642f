"""``AgentClient``: requests to an agent of this machine over a local socket."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import msgspec

from ringleader.deadline import Deadline
from ringleader.errors import PeerError, PeerLost, ProtocolError
from ringleader.node.protocol import framing
from ringleader.node.protocol.agent_config import run_directory
from ringleader.node.protocol.local_requests import (
    Progress,
    Reply,
    RequestFailed,
    UseService,
    decode_reply,
)
from ringleader.node.protocol.socket_path import short_path
from ringleader.transport import tcp_socket

AGENT = "the agent of this machine"

OnProgress = Callable[[str], None]


class AgentClient:
    """Sends requests over a connected local socket. For one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)

    def ask(
        self,
        request: msgspec.Struct,
        deadline: Deadline,
        on_progress: OnProgress = lambda _text: None,
    ) -> Reply:
        """Send ``request`` and return its reply.

        Progress messages that arrive before the reply go to ``on_progress``. Raises
        the agent's error if it reports one.
        """
        try:
            return self._ask(request, deadline, on_progress)
        except PeerError:
            # A late reply would be taken for the reply to the next request.
            self._sock.close()
            raise

    def _ask(
        self, request: msgspec.Struct, deadline: Deadline, on_progress: OnProgress
    ) -> Reply:
        self.send(request, deadline)
        while True:
            match self.receive(deadline):
                case Progress(text=text):
                    on_progress(text)
                case RequestFailed() as failed:
                    raise failed.to_error()
                case reply:
                    return reply

    def send(self, message: object, deadline: Deadline) -> None:
        """Send one message without waiting for a reply."""
        with _ended_agent():
            tcp_socket.send_all(self._sock, framing.pack(message), AGENT, deadline)

    def use_service(self, purpose: str, deadline: Deadline, subject: str = "") -> None:
        """Let a service of the agent talk on this connection from now on.

        Then use ``send`` and ``receive_body``. Raises the agent's error if it has no
        such service.
        """
        self.ask(UseService(purpose, subject), deadline)

    def receive(self, deadline: Deadline) -> Reply:
        """Return the next message of the agent."""
        return decode_reply(self.receive_body(deadline))

    def receive_body(
        self, deadline: Deadline, limit_bytes: int = framing.MAX_BYTES
    ) -> bytes:
        """Return the body of the next message, as it is.

        Raises ``ProtocolError`` for one of more than ``limit_bytes``.
        """
        size = int.from_bytes(self._receive(framing.PREFIX_BYTES, deadline), "little")
        if size > limit_bytes:
            text = f"sent a message of {size} bytes; limit {limit_bytes}"
            raise ProtocolError(AGENT, text)
        return self._receive(size, deadline)

    def _receive(self, num_bytes: int, deadline: Deadline) -> bytes:
        with _ended_agent():
            return tcp_socket.recv_exact(self._sock, num_bytes, AGENT, deadline)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def shutdown(self) -> None:
        """End pending requests with ``PeerLost``. Any thread may call it."""
        with contextlib.suppress(OSError):  # the agent is gone
            self._sock.shutdown(socket.SHUT_RDWR)

    def listener_pid(self) -> int | None:
        """Return the process id of the agent, by the kernel's word; None: unknown."""
        if not hasattr(socket, "SO_PEERCRED"):
            return None
        size = struct.calcsize("3i")
        found = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", found)[0])

    def forget(self) -> None:
        """Close the copy of the socket in a forked child, which does not own it."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _ended_agent() -> Iterator[None]:
    """Say what a broken connection to a process of this machine means."""
    try:
        yield
    except PeerLost as exc:
        raise PeerLost(AGENT, "has ended") from exc


def agent_sockets(home: Path) -> list[Path]:
    """Return the local sockets of agents that may be alive, the oldest first."""
    found = []
    for path in run_directory(home).glob("*.sock"):
        with contextlib.suppress(OSError):  # the agent may end meanwhile
            found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found)]


def connect_to_agent(path: Path, deadline: Deadline) -> AgentClient | None:
    """Connect to an agent started by another process; None if it is gone.

    None also where Python has no Unix sockets: on Windows.
    """
    if not hasattr(socket, "AF_UNIX"):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(max(0.01, deadline.left_s()))
    try:
        with short_path(path) as address:
            sock.connect(address)
    except OSError:
        sock.close()
        return None
    return AgentClient(sock)
