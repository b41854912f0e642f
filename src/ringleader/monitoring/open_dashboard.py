"""``open_dashboard`` and ``PageReader``: what commands ask the local agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import msgspec

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerError, ProtocolError
from ringleader.monitoring.messages import (
    DASHBOARD,
    PAGE,
    DashboardOpened,
    OpenDashboard,
)
from ringleader.node.protocol.agent_client import (
    AGENT,
    AgentClient,
    agent_sockets,
    connect_to_agent,
)
from ringleader.node.protocol.local_requests import RequestFailed

ASK_S = 20.0
"""An agent answers in milliseconds; a machine that swaps may need longer."""

NO_AGENT = (
    "no agent runs on this machine: start one with 'ringleader up', or start a job "
    "with 'ringleader run', and ask again"
)


def open_dashboard(home: Path, request: OpenDashboard) -> DashboardOpened:
    """Let the agent of this machine open its dashboard; return the link.

    Raises ``ConfigError`` if no agent runs here.
    """
    agent, deadline = _connect(home, DASHBOARD)
    try:
        agent.send(request, deadline)
        body = agent.receive_body(deadline)
    finally:
        agent.close()
    return _decode(body)


def _connect(home: Path, service: str) -> tuple[AgentClient, Deadline]:
    """Return a connection to a service of the oldest agent that answers."""
    for path in agent_sockets(home):
        deadline = Deadline.after(ASK_S)
        agent = connect_to_agent(path, deadline)
        if agent is None:
            continue
        try:
            agent.use_service(service, deadline)
        except PeerError:
            agent.close()
            continue  # this agent hangs or ends; others may answer
        except BaseException:
            agent.close()
            raise
        return agent, deadline
    raise ConfigError(NO_AGENT)


_REPLY: msgspec.msgpack.Decoder[DashboardOpened | RequestFailed] = (
    msgspec.msgpack.Decoder(DashboardOpened | RequestFailed)
)


def _decode(body: bytes) -> DashboardOpened:
    try:
        found = _REPLY.decode(body)
    except msgspec.DecodeError as exc:
        raise ProtocolError(AGENT, f"invalid reply ({exc})") from exc
    if isinstance(found, RequestFailed):
        raise found.to_error()
    return found


class PageReader:
    """Reads the state of the page from the agent, again and again."""

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent

    @classmethod
    def connect(cls, home: Path) -> Self:
        """Connect to the agent of this machine; ``ConfigError`` if there is none."""
        return cls(_connect(home, PAGE)[0])

    def read(self) -> dict[str, Any]:
        """Return the state now; raises ``PeerError`` if the agent has ended."""
        deadline = Deadline.after(ASK_S)
        self._agent.send(None, deadline)
        body = self._agent.receive_body(deadline)
        try:
            found: dict[str, Any] = json.loads(body)
        except ValueError as exc:
            raise ProtocolError(AGENT, f"invalid state ({exc})") from exc
        return found

    def close(self) -> None:
        """Close the connection."""
        self._agent.close()
