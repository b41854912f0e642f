"""``Services``: what an agent does for other commands and agents, by purpose.

A service is a coroutine that talks to one client over a ``ServiceStream``. It is found
by its purpose, which is the first thing a client says:

* a process of this user sends ``UseService`` over the agent's Unix socket, and the
  agent answers ``RequestDone`` before the service speaks;
* the agent of another member names the purpose in its hello, after mutual TLS; it uses
  ``Services.dial`` for that. Whoever has no certificate of the cluster never gets here.

A machine that leaves the view may never say so: a pulled cable closes no connection.
``on_members`` ends the streams to and from it.

A service that fails with an error of ours tells the client by ``RequestFailed`` and a
closed stream; the agent goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from ringleader.errors import ConfigError, PeerLost, RingleaderError
from ringleader.ids import NodeId
from ringleader.node.agent.service_stream import LOCAL, ServiceStream
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol.hello import AgentHello, Purpose
from ringleader.node.protocol.local_requests import (
    RequestDone,
    RequestFailed,
    UseService,
)
from ringleader.topology.node_profile import clean

log = logging.getLogger(__name__)

MAX_STREAMS = 256
"""Conversations of one service at a time with other machines, and as many with programs
of this user: whoever opens more has a bug, and keeps the user from nothing."""

REFUSE_S = 10.0
"""How long a client may take to read why it is refused; then it reads the end."""

_OWN_PURPOSES = frozenset(each.value for each in Purpose)
"""Connections that the agent handles itself."""

Handler = Callable[[ServiceStream], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Service:
    handler: Handler
    for_local: bool
    for_peers: bool
    num_streams: Counter[bool] = field(default_factory=Counter)
    """How many are open: those of this user's programs (True) and of other machines."""


@dataclass(slots=True)
class Services:
    """The services of one agent. Lives on its event loop."""

    dial_peer: Callable[[NodeId, str, str], Awaitable[PeerConnection]]
    _services: dict[str, _Service] = field(default_factory=dict)
    _on_stop: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    _members: frozenset[NodeId] = frozenset()
    _streams: weakref.WeakSet[ServiceStream] = field(default_factory=weakref.WeakSet)
    """Open streams to and from other machines."""

    def register(
        self,
        purpose: str,
        handler: Handler,
        *,
        for_local: bool = True,
        for_peers: bool = True,
    ) -> None:
        """Let ``handler`` talk to each client that names ``purpose``.

        The stream is closed when it returns. ``for_local`` and ``for_peers`` say who
        may use it: processes of this user, agents of other members.
        """
        if purpose in self._services or purpose in _OWN_PURPOSES:
            raise ConfigError(f"service {purpose!r} is registered twice")
        self._services[purpose] = _Service(handler, for_local, for_peers)

    def on_stop(self, action: Callable[[], Awaitable[None]]) -> None:
        """Await ``action`` when the agent ends, before it leaves the cluster."""
        self._on_stop.append(action)

    async def stop(self) -> None:
        """Let all services end."""
        for action in reversed(self._on_stop):
            await action()

    def on_members(self, nodes: Collection[NodeId]) -> None:
        """End the streams to and from machines that the view has no longer."""
        members = frozenset(nodes)
        left = self._members - members
        self._members = members
        for stream in list(self._streams):
            if stream.peer in left:
                stream.give_up("is no longer in the cluster: it went silent or left")

    async def dial(
        self, node: NodeId, purpose: str, subject: str = ""
    ) -> ServiceStream:
        """Talk to the service ``purpose`` of another member.

        Raises ``PeerError``: ``PeerRefused`` if that member has no such service. The
        caller closes the stream.
        """
        made = await self.dial_peer(node, purpose, subject)
        name = clean(made.hello.name)
        stream = ServiceStream(made.node, name, subject, made.reader, made.writer)
        self._streams.add(stream)
        return stream

    def refusal(self, hello: AgentHello) -> str:
        """Return why a peer with this hello is refused; '': it is not."""
        if hello.purpose in _OWN_PURPOSES:
            return ""
        found = self._services.get(hello.purpose)
        if found is not None and found.for_peers:
            return ""
        text = f"this machine offers no service {hello.purpose[:40]!r} to others"
        return f"{text}; is its ringleader as new as yours?"

    async def serve_peer(self, connection: PeerConnection) -> None:
        """Let the service that the peer's hello names talk to it."""
        hello = connection.hello
        found = self._services.get(hello.purpose)
        if found is None or not found.for_peers:
            connection.close()
            return
        reader, writer = connection.reader, connection.writer
        name = clean(hello.name)
        stream = ServiceStream(connection.node, name, hello.subject, reader, writer)
        self._streams.add(stream)
        await self._serve(hello.purpose, found, stream)

    async def serve_local(
        self,
        request: UseService,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Let the service that a local process asks for talk to it.

        Raises ``ConfigError`` if there is no such service.
        """
        found = self._services.get(request.purpose)
        if found is None or not found.for_local:
            text = f"the agent has no service {request.purpose!r}"
            raise ConfigError(f"{text}; is it older than this command? Restart it")
        stream = ServiceStream(None, LOCAL, request.subject, reader, writer)
        await stream.send(RequestDone())
        await self._serve(request.purpose, found, stream)

    async def _serve(
        self, purpose: str, service: _Service, stream: ServiceStream
    ) -> None:
        is_local = stream.peer is None
        service.num_streams[is_local] += 1
        try:
            if service.num_streams[is_local] > MAX_STREAMS:
                text = f"service {purpose}: {MAX_STREAMS} clients use it already"
                raise ConfigError(text)
            await service.handler(stream)
        except PeerLost:
            pass  # the client has gone
        except RingleaderError as exc:
            with contextlib.suppress(PeerLost, TimeoutError):
                async with asyncio.timeout(REFUSE_S):
                    await stream.send(RequestFailed.of(exc))
        except Exception as exc:
            log.exception("service %s failed while it served %s", purpose, stream.who)
            with contextlib.suppress(PeerLost):
                await stream.send(RequestFailed.of(exc))
        finally:
            service.num_streams[is_local] -= 1
            stream.close()
