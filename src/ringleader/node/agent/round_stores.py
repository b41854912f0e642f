"""The stores that are open on this machine, and who is led to them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from ringleader.ids import NodeId
from ringleader.node.agent.store_tunnel import serve_store
from ringleader.node.peering.peer_connection import Guest

STORE_S = 30.0
"""How long the first machine of a round may take to open its store."""


@dataclass(frozen=True, slots=True)
class _Store:
    port: int
    nodes: tuple[NodeId, ...]
    """Those of the round: nobody else is let in."""


@dataclass(slots=True)
class Stores:
    """By round. Lives on the loop of the agent."""

    _open: dict[str, _Store] = field(default_factory=dict)
    _guests: set[Guest] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, round_id: str, port: int, nodes: tuple[NodeId, ...]) -> None:
        """The store of a round listens on a port of 127.0.0.1."""
        self._open[round_id] = _Store(port, nodes)
        self._news.set()
        self._news = asyncio.Event()

    def close(self, round_id: str) -> None:
        """The round is over."""
        self._open.pop(round_id, None)

    def close_for_absent(self, present: Collection[NodeId]) -> None:
        """Hang up on machines that are gone: they may never say so themselves."""
        for guest in [g for g in self._guests if g.node not in present]:
            guest.abort()

    async def lead(self, guest: Guest) -> None:
        """A guest from another machine wants the store of its round."""
        try:
            async with asyncio.timeout(STORE_S):
                # It may be quicker than we are: the store is still to come here.
                while (store := self._open.get(guest.hello.subject)) is None:
                    await self._news.wait()
        except TimeoutError:
            store = None
        if store is None or guest.node not in store.nodes:
            guest.close()
            return
        self._guests.add(guest)
        try:
            await serve_store(guest, store.port)
        finally:
            self._guests.discard(guest)
