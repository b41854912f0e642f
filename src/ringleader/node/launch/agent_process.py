"""``AgentProcess``: an agent started and owned by this process.

The agent sees the end of the socket when this process dies, however it dies, and tells
the other nodes.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Self

from ringleader.deadline import OWN_PROCESS_S, Deadline
from ringleader.errors import ConfigError, PeerLost, PeerUnreachable
from ringleader.log_limit import private
from ringleader.node.protocol.agent_client import AGENT, AgentClient
from ringleader.node.protocol.agent_config import (
    AgentConfig,
    make_run_directory,
    run_directory,
)
from ringleader.node.protocol.local_requests import RequestFailed
from ringleader.node.protocol.resident_record import LOG
from ringleader.node.protocol.socket_handover import start_with_socket

SLOW_S = 30.0
"""An agent starts in half a second; after this long the user is told why we wait."""
CLOSE_S = 30.0
"""An agent leaves within two seconds; one that is killed is lost for the others."""

log = logging.getLogger(__name__)

_open_agents: weakref.WeakSet[AgentClient] = weakref.WeakSet()


def forget_at_fork(agent: AgentClient) -> None:
    """Let forked children close their copy of the connection to ``agent``."""
    _open_agents.add(agent)


def _forget_agents() -> None:
    """Close inherited sockets in a forked child.

    The agent ends when all copies of the socket are closed, or leaves the job, so a
    child must not hold one.
    """
    for agent in list(_open_agents):
        agent.forget()
    _open_agents.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_agents)


def log_path(config: AgentConfig) -> Path:
    """Return the file that a resident agent prints to."""
    return run_directory(Path(config.home)) / LOG


def _start(
    command: list[str], sock: socket.socket, config: AgentConfig
) -> subprocess.Popen[bytes]:
    if not config.is_resident:
        return start_with_socket(command, sock)
    path = make_run_directory(Path(config.home)) / LOG
    with open(path, "ab", opener=private) as file:  # the agent keeps it short
        # Not in the user's folder: it may be removed, or on a disk to be unmounted.
        return start_with_socket(command, sock, log=file, folder=config.home)


class AgentProcess(AgentClient):
    """Client of an agent process; closing it makes the node leave the cluster."""

    def __init__(
        self,
        sock: socket.socket,
        process: subprocess.Popen[bytes],
        config: AgentConfig,
    ) -> None:
        super().__init__(sock)
        self._process = process
        self.config = config

    @classmethod
    def start(cls, config: AgentConfig) -> Self:
        """Start an agent and wait until it is ready.

        Raises ``ConfigError`` if the agent cannot work with ``config``, and
        ``PeerUnreachable`` if it ends without saying why.
        """
        ours, theirs = socket.socketpair()
        # -P: a secrets.py in the user's directory must not replace the library's.
        command = [sys.executable, "-P", "-m", "ringleader.node.agent.process"]
        try:
            process = _start(command, theirs, config)
        except OSError as exc:
            ours.close()
            raise ConfigError(f"cannot start the agent process: {exc}") from exc
        finally:
            theirs.close()
        agent = cls(ours, process, config)
        forget_at_fork(agent)
        try:
            agent._configure(config)
        except PeerLost as exc:
            agent.close()
            where = str(log_path(config)) if config.is_resident else "above"
            text = f"ended while starting; see what it printed: {where}"
            raise PeerUnreachable(AGENT, text) from exc
        except BaseException:
            agent.close()
            raise
        return agent

    def _configure(self, config: AgentConfig) -> None:
        deadline = Deadline.after(OWN_PROCESS_S)
        self.send(config, deadline)
        if not select.select([self._sock], [], [], SLOW_S)[0]:
            log.warning("%s is still starting: this machine is very busy", AGENT)
        first = self.receive(deadline)
        if isinstance(first, RequestFailed):
            raise first.to_error()

    @property
    def pid(self) -> int:
        """Process id of the agent."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the agent runs."""
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Let the agent leave the cluster and end; pending requests raise
        ``PeerLost``. Any thread may call it."""
        self._process.terminate()

    def detach(self) -> None:
        """Let a resident agent go on without this process."""
        _open_agents.discard(self)
        self.forget()

    def forget(self) -> None:
        """Drop the agent without ending it: a forked child does not own it."""
        super().close()
        self._process.returncode = 0  # else Popen warns about a child that is not one

    def close(self) -> None:
        """Leave the cluster and end the agent process. Idempotent."""
        super().close()
        _open_agents.discard(self)
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(CLOSE_S)
