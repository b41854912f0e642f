"""An agent of our own: a process apart that outlives no one and is asked over a socket.

The agent sees the end of our socket when we die, however we die, and tells the others.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    PeerError,
    PeerLost,
    PeerUnreachable,
    RingleaderError,
)
from ringleader.node.protocol import framing, local_requests
from ringleader.node.protocol.local_requests import Failed, Progress, Reply, Request
from ringleader.transport import tcp

RUN = "run"
"""The folder, in the home, of what only lives as long as an agent."""
AGENT = "the agent of this machine"
START_S = 30.0
"""An agent is up in half a second; a machine that swaps may need longer."""
CLOSE_S = 5.0

OnProgress = Callable[[str], None]


class AgentConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """How an agent should work, as its parent tells it."""

    home: str
    peers: str = ""
    """host:port,... of agents that mDNS does not find."""
    interfaces: list[str] = []
    """Names of the interfaces to use; empty: chosen on purpose."""
    port: int = 0
    profile: str = "lan"
    name: str = ""
    tells: bool = False
    """Whether it prints what happens, in words, on standard error."""


CONFIG = msgspec.msgpack.Decoder(AgentConfig)


class Conversation:
    """Requests and replies over a connected local socket. One thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)

    def ask(
        self,
        request: Request,
        deadline: Deadline,
        on_progress: OnProgress = lambda _text: None,
    ) -> Reply:
        """The reply to ``request``; what comes before it is progress."""
        try:
            return self._ask(request, deadline, on_progress)
        except PeerError:
            # A reply that comes late would be taken for that of the next request.
            self._sock.close()
            raise

    def _ask(
        self, request: Request, deadline: Deadline, on_progress: OnProgress
    ) -> Reply:
        tcp.send_all(self._sock, framing.pack(request), AGENT, deadline)
        while True:
            match self.receive(deadline):
                case Progress(text=text):
                    on_progress(text)
                case Failed(text=text):
                    raise RingleaderError(text)
                case reply:
                    return reply

    def receive(self, deadline: Deadline) -> Reply:
        """The next message of the agent."""
        prefix = tcp.recv_exact(self._sock, framing.PREFIX_BYTES, AGENT, deadline)
        size = int.from_bytes(prefix, "little")
        return local_requests.decode_reply(
            tcp.recv_exact(self._sock, size, AGENT, deadline)
        )

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


_open_agents: weakref.WeakSet[Agent] = weakref.WeakSet()


def _let_go() -> None:
    """A forked child must not hold its parent's agent: that one waits for our end."""
    for agent in list(_open_agents):
        agent.forget()
    _open_agents.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


class Agent(Conversation):
    """The agent process of this process; closing it makes the node leave."""

    def __init__(self, config: AgentConfig) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = _start(theirs)
        except OSError as exc:
            ours.close()
            raise ConfigError(f"cannot start the agent: {exc}") from exc
        finally:
            theirs.close()
        super().__init__(ours)
        _open_agents.add(self)
        try:
            deadline = Deadline.after(START_S)
            tcp.send_all(ours, framing.pack(config), AGENT, deadline)
            first = self.receive(deadline)
            if isinstance(first, Failed):
                raise ConfigError(first.text)
        except PeerLost as exc:
            self.close()
            text = "ended while starting; what it printed above says why"
            raise PeerUnreachable(AGENT, text) from exc
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the agent."""
        return self._process.pid

    def forget(self) -> None:
        """In a forked child: the agent is not ours."""
        super().close()
        self._process.returncode = 0  # else Popen warns about a child that is not one

    def close(self) -> None:
        """Leave the cluster and end the agent. Idempotent."""
        super().close()
        _open_agents.discard(self)
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(CLOSE_S)


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Run the agent with one end of the socket pair, whatever the platform."""
    # -P: a secrets.py in the user's folder is not the one we mean.
    command = [sys.executable, "-P", "-m", "ringleader.node.agent.process"]
    # In a group of its own: Ctrl-C is for us, and we tell the agent by hanging up.
    if sys.platform == "win32":
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
        )
        assert process.stdin is not None
        process.stdin.write(theirs.share(process.pid))
        process.stdin.close()
        return process
    fd = theirs.fileno()
    return subprocess.Popen(
        [*command, str(fd)],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def inherited(argv: Sequence[str]) -> socket.socket:
    """The agent's end of what ``_start`` made."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    sock = socket.socket(fileno=int(argv[0]))
    os.set_inheritable(sock.fileno(), False)
    return sock


def running(home: Path) -> list[Path]:
    """The local sockets of agents that may be alive, the oldest first."""
    found = []
    for path in (home / RUN).glob("*.sock"):
        with contextlib.suppress(OSError):  # it may end while we look
            found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found)]


def visit(path: Path, deadline: Deadline) -> Conversation | None:
    """Talk to an agent that another process started; None when it is gone."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(max(0.01, deadline.left_s()))
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        return None
    return Conversation(sock)
