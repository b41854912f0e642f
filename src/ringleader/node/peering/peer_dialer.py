"""``PeerDialer``: keeps control links to all nodes that can be found.

Targets are the nodes mDNS saw, the peers the user named, and the members of the view.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.discovery.mdns import Mdns
from ringleader.discovery.static_peers import StaticPeers
from ringleader.errors import PeerError
from ringleader.ids import NodeId, short
from ringleader.node.peering.connect import connect
from ringleader.node.peering.peer_connection import (
    Address,
    HandshakeContext,
    PeerConnection,
)
from ringleader.node.protocol.hello import Purpose

EVERY_S = 0.1
MAX_DIALS = 4
RESOLVE_S = 5.0
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 10.0
MAX_TROUBLES = 32


@dataclass(slots=True)
class _Target:
    """A named peer or a member, and when to dial it again."""

    retry_s: float = 0.0
    due_s: float = 0.0
    reached: NodeId | None = None

    def failed(self, now_s: float) -> None:
        self.retry_s = min(max(FIRST_RETRY_S, 2 * self.retry_s), LONGEST_RETRY_S)
        self.due_s = now_s + self.retry_s
        self.reached = None


@dataclass(slots=True)
class PeerDialer:
    """Dials nodes that are not linked yet. Lives on the event loop of the agent."""

    mine: NodeId
    handshake: HandshakeContext
    mdns: Mdns | None
    static: StaticPeers
    on_connected: Callable[[PeerConnection], None]
    is_linked: Callable[[NodeId], bool]
    members: Callable[[], Mapping[NodeId, Sequence[Address]]]
    """Returns the addresses of the nodes in the view, as they announced them."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Targets that could not be reached and why, for ``status`` and ``doctor``."""
    _labels: dict[str, NodeId] = field(default_factory=dict)
    _targets: dict[str, _Target] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Dial until cancelled."""
        resolving = asyncio.create_task(self._dial_static_peers())
        try:
            while True:
                self._dial_sightings()
                self._dial_members()
                await asyncio.sleep(EVERY_S)
        finally:
            for task in [resolving, *self._tasks]:
                task.cancel()

    def link_lost(self, node: NodeId) -> None:
        """Allow a node to be dialled again after its link ended."""
        now_s = asyncio.get_running_loop().time()
        for label in [k for k, v in self._labels.items() if v == node]:
            del self._labels[label]
            if self.mdns is not None:
                self.mdns.sightings.failed(label, now_s)
        for target in self._targets.values():
            if target.reached == node:
                target.failed(time.monotonic())

    def _dial_members(self) -> None:
        for node, addresses in self.members().items():
            if node != self.mine and not self.is_linked(node) and addresses:
                self._try(f"member {short(node)}", addresses, node)

    def _dial_sightings(self) -> None:
        if self.mdns is None:
            return
        sightings = self.mdns.sightings
        while len(self._tasks) < MAX_DIALS:
            sighting = sightings.next_to_dial(asyncio.get_running_loop().time())
            if sighting is None:
                return
            addresses = [(address, sighting.port) for address in sighting.addresses]
            self._start(self._dial_sighting(sighting.label, addresses))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial_sighting(self, label: str, addresses: list[Address]) -> None:
        assert self.mdns is not None
        loop = asyncio.get_running_loop()
        connection = await self._dial(addresses, None)
        if connection is None:
            self.mdns.sightings.failed(label, loop.time())
        else:
            self._labels[label] = connection.node
            self.mdns.sightings.reached(label)

    def _try(
        self, name: str, addresses: Sequence[Address], node: NodeId | None
    ) -> None:
        """Dial a target unless it is linked or its next try is not due."""
        target = self._targets.setdefault(name, _Target())
        if target.reached is not None and self.is_linked(target.reached):
            return
        now_s = time.monotonic()
        if now_s < target.due_s or len(self._tasks) >= MAX_DIALS:
            return
        target.due_s = now_s + LONGEST_RETRY_S  # until this attempt has ended
        self._start(self._dial_target(target, addresses, node))

    async def _dial_target(
        self, target: _Target, addresses: Sequence[Address], node: NodeId | None
    ) -> None:
        connection = await self._dial(addresses, node)
        if connection is None:
            target.failed(time.monotonic())
        else:
            target.reached, target.retry_s, target.due_s = connection.node, 0.0, 0.0

    async def _dial(
        self, addresses: Sequence[Address], node: NodeId | None
    ) -> PeerConnection | None:
        names = ", ".join(f"{host}:{port}" for host, port in addresses)
        try:
            connection = await connect(
                self.handshake, addresses, Purpose.CONTROL, expect=node
            )
        except PeerError as exc:
            if len(self.troubles) < MAX_TROUBLES or names in self.troubles:
                self.troubles[names] = str(exc)
            return None
        self.troubles.pop(names, None)
        self.on_connected(connection)
        return connection

    async def _dial_static_peers(self) -> None:
        """Dial the named peers, resolving their names again before each attempt."""
        while self.static.peers:
            for answer in await self.static.resolve(Deadline.after(RESOLVE_S)):
                if answer.addresses:
                    port = answer.peer.port
                    addresses = [(address, port) for address in answer.addresses]
                    self._try(f"peer {answer.peer}", addresses, None)
                elif len(self.troubles) < MAX_TROUBLES:
                    self.troubles[str(answer.peer)] = answer.trouble
            await asyncio.sleep(FIRST_RETRY_S)
