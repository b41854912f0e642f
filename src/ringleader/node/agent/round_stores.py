"""``RoundStores``: the TCPStores open on this machine, and access to them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from ringleader.ids import NodeId
from ringleader.node.agent.store_tunnel import serve_store
from ringleader.node.peering.peer_connection import PeerConnection

STORE_S = 30.0
"""How long the first machine of a round may take to open its store."""


@dataclass(frozen=True, slots=True)
class _Store:
    port: int
    nodes: tuple[NodeId, ...]
    """Nodes of the round; others are refused."""


@dataclass(slots=True)
class RoundStores:
    """Open stores by round id. Lives on the event loop of the agent."""

    _open: dict[str, _Store] = field(default_factory=dict)
    _connections: set[PeerConnection] = field(default_factory=set)
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, round_id: str, port: int, nodes: tuple[NodeId, ...]) -> None:
        """Allow ``nodes`` to reach the store that listens on 127.0.0.1 at ``port``."""
        self._open[round_id] = _Store(port, nodes)
        self._opened.set()
        self._opened = asyncio.Event()

    def close(self, round_id: str) -> None:
        """Refuse new connections to the store of a round that is over."""
        self._open.pop(round_id, None)

    def close_for_absent(self, present: Collection[NodeId]) -> None:
        """Close the connections of nodes that are gone; they may never do so."""
        for connection in [c for c in self._connections if c.node not in present]:
            connection.abort()

    async def serve(self, connection: PeerConnection) -> None:
        """Connect another node with the store of its round, or close the connection."""
        try:
            async with asyncio.timeout(STORE_S):
                # The other node may be faster: the store is not open here yet.
                while (store := self._open.get(connection.hello.subject)) is None:
                    await self._opened.wait()
        except TimeoutError:
            store = None
        if store is None or connection.node not in store.nodes:
            connection.close()
            return
        self._connections.add(connection)
        try:
            await serve_store(connection, store.port)
        finally:
            self._connections.discard(connection)
