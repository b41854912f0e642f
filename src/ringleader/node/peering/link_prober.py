"""``LinkProber``: measures the links of this node, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from ringleader.errors import PeerError
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.ids import NodeId
from ringleader.node.peering import link_plan
from ringleader.node.peering.link_probe import LinkProbe
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol.node_state import NodeState
from ringleader.topology.link_profile import LinkProfile


@dataclass(slots=True)
class LinkProber:
    """The measured links of this node. Lives on the event loop of the agent."""

    mine: NodeId
    credentials: NodeCredentials
    dial: Callable[[NodeId], Awaitable[PeerConnection]]
    on_measured: Callable[[], None]
    ports: range
    links: dict[NodeId, LinkProfile] = field(default_factory=dict)
    troubles: dict[NodeId, str] = field(default_factory=dict)
    """Links that could not be measured, and why."""
    _probe: LinkProbe = field(init=False)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._probe = LinkProbe(self.credentials, self.ports)

    def on_view_state(self, states: Mapping[NodeId, NodeState]) -> None:
        """Start measuring the links of a new view that are not measured yet."""
        # A machine that comes back may come back on another network.
        for node in [node for node in self.links if node not in states]:
            del self.links[node]
        todo = link_plan.to_measure(states, self.mine)
        todo = [node for node in todo if node not in self.links]
        if todo and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._measure(todo))

    async def _measure(self, todo: list[NodeId]) -> None:
        for node in todo:
            await self._record(node, self._ask(node))

    async def _ask(self, node: NodeId) -> LinkProfile:
        return await self._probe.ask(await self.dial(node))

    async def answer(self, connection: PeerConnection) -> None:
        """Take part in a probe that another node asks for."""
        await self._record(connection.node, self._probe.answer(connection))

    async def _record(self, node: NodeId, work: Awaitable[LinkProfile]) -> None:
        try:
            self.links[node] = await work
        except PeerError as exc:
            self.troubles[node] = str(exc)
        else:
            self.troubles.pop(node, None)
            self.on_measured()

    def stop(self) -> None:
        """Stop measuring."""
        if self._task is not None:
            self._task.cancel()
