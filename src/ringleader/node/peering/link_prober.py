"""The links of this node, measured one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from ringleader.errors import PeerError
from ringleader.identity.credentials import Credentials
from ringleader.ids import NodeId
from ringleader.node.peering import link_plan
from ringleader.node.peering.link_probe import Prober
from ringleader.node.peering.peer_connection import Guest
from ringleader.node.protocol.node_state import Seat
from ringleader.topology.link_profile import LinkProfile


@dataclass(slots=True)
class Survey:
    """What we know of our links, and the probes that find it out."""

    mine: NodeId
    credentials: Credentials
    dial: Callable[[NodeId], Awaitable[Guest]]
    changed: Callable[[], None]
    links: dict[NodeId, LinkProfile] = field(default_factory=dict)
    troubles: dict[NodeId, str] = field(default_factory=dict)
    """Links that could not be measured, and why."""
    _prober: Prober = field(init=False)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._prober = Prober(self.credentials)

    def on_seats(self, seats: Mapping[NodeId, Seat]) -> None:
        """A view has come into force: measure what nobody has measured yet."""
        # A machine that comes back may come back on another network.
        for node in [node for node in self.links if node not in seats]:
            del self.links[node]
        todo = link_plan.to_measure(seats, self.mine)
        todo = [node for node in todo if node not in self.links]
        if todo and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._measure(todo))

    async def _measure(self, todo: list[NodeId]) -> None:
        for node in todo:
            await self._record(node, self._ask(node))

    async def _ask(self, node: NodeId) -> LinkProfile:
        return await self._prober.ask(await self.dial(node))

    async def answer(self, guest: Guest) -> None:
        """Another node asks for a probe."""
        await self._record(guest.node, self._prober.answer(guest))

    async def _record(self, node: NodeId, work: Awaitable[LinkProfile]) -> None:
        try:
            self.links[node] = await work
        except PeerError as exc:
            self.troubles[node] = str(exc)
        else:
            self.troubles.pop(node, None)
            self.changed()

    def stop(self) -> None:
        """Measure no more."""
        if self._task is not None:
            self._task.cancel()
