"""The service ``events``: cluster events of this agent, as they happen.

A client receives one ``ClusterEvent`` per message until it closes the stream; with the
subject ``all`` first those that ``status`` shows.
"""

from __future__ import annotations

import asyncio

from ringleader.errors import PeerLost
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.event_log import EventLog
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.node.protocol.local_requests import EVENTS
from ringleader.node.protocol.snapshot import ClusterEvent

MAX_WAITING = 256
"""Events that wait for a client that does not read; then it is cut off."""


def install(core: AgentCore) -> None:
    """Register the service at an agent."""

    async def serve(stream: ServiceStream) -> None:
        await _follow(core.events, stream)

    core.services.register(EVENTS, serve)


async def _follow(log: EventLog, stream: ServiceStream) -> None:
    waiting: asyncio.Queue[ClusterEvent] = asyncio.Queue(MAX_WAITING)

    def add(event: ClusterEvent) -> None:
        if waiting.full():
            stream.abort()
        else:
            waiting.put_nowait(event)

    if stream.subject == "all":
        for event in log.events:
            add(event)
    log.followers.append(add)
    sending = asyncio.create_task(_send_all(waiting, stream))
    end = asyncio.create_task(stream.reader.read(1))  # clients say nothing more
    try:
        await asyncio.wait([sending, end], return_when=asyncio.FIRST_COMPLETED)
    finally:
        log.followers.remove(add)
        sending.cancel()
        end.cancel()
        await asyncio.gather(sending, end, return_exceptions=True)


async def _send_all(
    waiting: asyncio.Queue[ClusterEvent], stream: ServiceStream
) -> None:
    try:
        while True:
            await stream.send(await waiting.get())
    except PeerLost:
        return
