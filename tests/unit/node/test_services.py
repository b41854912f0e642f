"""Streams between agents end with the machine at the other end."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field

import pytest

from ringleader.errors import PeerLost
from ringleader.ids import Incarnation, NodeId
from ringleader.node.agent import services as services_module
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.node.agent.services import Services
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import AgentHello
from ringleader.node.protocol.local_requests import UseService

ATTIC, STUDIO, CELLAR = (NodeId(letter * 52) for letter in "abc")
LIMIT_S = 60.0
GONE = "is no longer in the cluster"


@dataclass
class Others:
    """Other machines, which say only what a test lets them say."""

    ends: list[tuple[NodeId, socket.socket]] = field(default_factory=list)
    """Their ends of all connections."""
    made: list[PeerConnection] = field(default_factory=list)

    async def dial(self, node: NodeId, purpose: str, subject: str) -> PeerConnection:
        ours, theirs = socket.socketpair()
        self.ends.append((node, theirs))
        reader, writer = await asyncio.open_connection(sock=ours)
        hello = AgentHello(
            protocol=1,
            version="1",
            purpose=purpose,
            node=node,
            incarnation=Incarnation("0" * 16),
            started_ms=0,
            name=f"host-{node[0]}",
            port=1,
            clock_s=0.0,
        )
        self.made.append(PeerConnection(node, hello, reader, writer, ("10.0.0.1", 1)))
        return self.made[-1]

    def say(self, node: NodeId, message: str) -> None:
        for each, end in self.ends:
            if each == node:
                end.sendall(framing.pack(message))

    async def close(self) -> None:
        for connection in self.made:
            connection.close()
            await connection.writer.wait_closed()
        for _, end in self.ends:
            end.close()


@dataclass
class Listening:
    """A service that waits for a message."""

    has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, stream: ServiceStream) -> None:
        self.has_begun.set()
        await stream.read()


async def _lose_one_machine() -> None:
    """In both directions; a pulled cable closes no connection by itself."""
    others, listening = Others(), Listening()
    services = Services(others.dial)
    services.register("jobs", listening.serve)
    services.on_members([ATTIC, STUDIO])
    attic, studio = [await services.dial(node, "jobs") for node in (ATTIC, STUDIO)]
    incoming = await others.dial(ATTIC, "jobs", "")
    serving = asyncio.create_task(services.serve_peer(incoming))
    reading = asyncio.create_task(attic.read())
    await listening.has_begun.wait()

    services.on_members([STUDIO])
    with pytest.raises(PeerLost, match=rf"host-a \(a+\): {GONE}"):
        await reading
    with pytest.raises(PeerLost, match=GONE):
        await attic.send("anything")
    await serving

    others.say(STUDIO, "still here")
    assert await studio.read() == framing.encode("still here")
    await others.close()


async def _see_a_machine_join() -> None:
    others = Others()
    services = Services(others.dial)
    services.on_members([STUDIO])
    attic = await services.dial(ATTIC, "jobs")  # not in the view yet
    services.on_members([STUDIO, CELLAR])
    others.say(ATTIC, "hello")
    assert await attic.read() == framing.encode("hello")
    await others.close()


@pytest.mark.parametrize("scenario", [_lose_one_machine, _see_a_machine_join])
def test_streams_end_with_the_machine_that_left_the_view(scenario) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(limited())


def test_machines_that_take_all_streams_keep_the_user_from_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services_module, "MAX_STREAMS", 1)

    async def scenario() -> None:
        others, listening = Others(), Listening()
        services = Services(others.dial)
        services.register("jobs", listening.serve)
        services.on_members([ATTIC])
        incoming = await others.dial(ATTIC, "jobs", "")
        serving = asyncio.create_task(services.serve_peer(incoming))
        await listening.has_begun.wait()
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        listening.has_begun.clear()
        local = services.serve_local(UseService("jobs"), reader, writer)
        task = asyncio.create_task(local)
        await listening.has_begun.wait()
        theirs.close()
        await task
        await others.close()
        await serving

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(limited())
