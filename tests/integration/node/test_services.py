"""Services of an agent: for processes of its user, and for the agents of members."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerLost, PeerRefused
from ringleader.ids import NodeId
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.agent_identity import AgentIdentity
from ringleader.node.agent.build_snapshot import build_snapshot
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol.agent_client import (
    AgentClient,
    agent_sockets,
    connect_to_agent,
)
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import EVENTS, RequestFailed, decode_reply
from ringleader.node.protocol.snapshot import ClusterEvent, NodeRow
from ringleader.testing.node_process import make_home

LIMIT_S = 120.0
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    home = make_home(tmp_path / "home", os.urandom(32))
    return AgentConfig(
        home=str(home), interfaces=[LOOPBACK], profile="loopback", accepts_jobs=True
    )


@asynccontextmanager
async def agent_here(config: AgentConfig) -> AsyncIterator[AgentCore]:
    """An agent in this process."""
    with AgentIdentity.claim(config.home) as identity:
        core = AgentCore.listen(identity, config, build_snapshot)
        await core.start()
        try:
            yield core
        finally:
            await core.stop()


async def other_member(core: AgentCore) -> NodeRow:
    async with asyncio.timeout(LIMIT_S):
        while True:
            others = [row for row in core.snapshot().nodes if not row.is_here]
            if others and others[0].in_view and core.view_state:
                return others[0]
            await asyncio.sleep(0.02)


@contextmanager
def client_of(agent: AgentProcess) -> Iterator[AgentClient]:
    """A connection of another process of this user."""
    (path,) = agent_sockets(Path(agent.config.home))
    client = connect_to_agent(path, Deadline.after(LIMIT_S))
    assert client is not None
    try:
        yield client
    finally:
        client.close()


def test_a_process_of_this_user_asks_a_service(config: AgentConfig) -> None:
    with AgentProcess.start(config) as agent:
        with client_of(agent) as client:
            client.use_service(EVENTS, Deadline.after(LIMIT_S), "all")
            body = client.receive_body(Deadline.after(LIMIT_S))
            assert msgspec.msgpack.decode(body, type=ClusterEvent).kind == "view"
        nope = pytest.raises(ConfigError, match="has no service 'nope'")
        with client_of(agent) as client, nope:
            client.use_service("nope", Deadline.after(LIMIT_S))


async def ask_as_member(config: AgentConfig) -> None:
    async with agent_here(config) as core:
        row = await other_member(core)
        assert row.accepts_jobs, "members see who accepts jobs"
        async with asyncio.timeout(LIMIT_S):
            stream = await core.services.dial(NodeId(row.node), EVENTS, "all")
            event = msgspec.msgpack.decode(await stream.read(), type=ClusterEvent)
            assert (stream.peer, event.kind) == (row.node, "view")
            stream.close()
            with pytest.raises(PeerRefused, match="no service 'nope' to others"):
                await core.services.dial(NodeId(row.node), "nope")
        await ask_ourselves(core)


async def ask_ourselves(core: AgentCore) -> None:
    """Over TLS as anybody else; the service sees who asks, and tells its error."""
    asked: list[tuple[NodeId | None, str]] = []

    async def serve(stream: ServiceStream) -> None:
        asked.append((stream.peer, stream.subject))
        await stream.send_body(await stream.read(16))
        raise ConfigError("sentence for the client")

    core.services.register("echo", serve)
    async with asyncio.timeout(LIMIT_S):
        stream = await core.services.dial(core.me.node, "echo", "subject")
        await stream.send_body(b"words")
        assert await stream.read() == b"words"
        failed = decode_reply(await stream.read())
        assert isinstance(failed, RequestFailed)
        assert failed.text == "sentence for the client"
        with pytest.raises(PeerLost):
            await stream.read()
        stream.close()
    assert asked == [(core.me.node, "subject")]


def test_the_agent_of_another_member_asks_a_service(config: AgentConfig) -> None:
    with AgentProcess.start(config):
        asyncio.run(ask_as_member(config))
