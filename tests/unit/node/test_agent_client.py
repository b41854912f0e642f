"""What a process reads when the agent of its machine is gone."""

from __future__ import annotations

import socket

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import PeerLost
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.local_requests import UseService


def test_an_agent_that_is_gone_has_ended() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with (
        AgentClient(ours) as client,
        pytest.raises(PeerLost, match="the agent of this machine: has ended"),
    ):
        client.ask(UseService("jobs"), Deadline.after(10))
