"""Whom to dial: what mDNS saw, what was configured, and what other members know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.discovery.mdns import Mdns
from ringleader.discovery.static_peers import StaticPeers
from ringleader.errors import PeerError
from ringleader.ids import NodeId, short
from ringleader.node.peering.connect import dial
from ringleader.node.peering.membership_runner import CONTROL
from ringleader.node.peering.peer_connection import Address, Greeting, Guest

EVERY_S = 0.1
MAX_DIALS = 4
RESOLVE_S = 5.0
FIRST_REST_S = 0.5
LONGEST_REST_S = 10.0
KEPT_TROUBLES = 32


@dataclass(slots=True)
class _Target:
    """An address, or a member we should know, and when to try it again."""

    rest_s: float = 0.0
    due_s: float = 0.0
    reached: NodeId | None = None

    def failed(self, now_s: float) -> None:
        self.rest_s = min(max(FIRST_REST_S, 2 * self.rest_s), LONGEST_REST_S)
        self.due_s = now_s + self.rest_s
        self.reached = None


@dataclass(slots=True)
class Scout:
    """Keeps links to everybody who can be found. Lives on the loop of the agent."""

    mine: NodeId
    greeting: Greeting
    mdns: Mdns | None
    static: StaticPeers
    welcome: Callable[[Guest], None]
    is_linked: Callable[[NodeId], bool]
    members: Callable[[], dict[NodeId, Sequence[Address]]]
    """Nodes of the view and their addresses, as they told the leader."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Whom we saw and could not reach, and why; for ``status`` and ``doctor``."""
    _labels: dict[str, NodeId] = field(default_factory=dict)
    _targets: dict[str, _Target] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Dial until cancelled."""
        resolving = asyncio.create_task(self._resolve())
        try:
            while True:
                self._look()
                await asyncio.sleep(EVERY_S)
        finally:
            for task in [resolving, *self._tasks]:
                task.cancel()

    def lost(self, node: NodeId) -> None:
        """The link to a node ended: it may be dialled again."""
        now_s = asyncio.get_running_loop().time()
        for label in [k for k, v in self._labels.items() if v == node]:
            del self._labels[label]
            if self.mdns is not None:
                self.mdns.sightings.failed(label, now_s)
        for target in self._targets.values():
            if target.reached == node:
                target.failed(time.monotonic())

    def _look(self) -> None:
        self._look_at_sightings()
        for node, addresses in self.members().items():
            if node != self.mine and not self.is_linked(node) and addresses:
                self._try(f"member {short(node)}", addresses, node)

    def _look_at_sightings(self) -> None:
        if self.mdns is None:
            return
        sightings = self.mdns.sightings
        while len(self._tasks) < MAX_DIALS:
            sighting = sightings.next_to_dial(asyncio.get_running_loop().time())
            if sighting is None:
                return
            where = [(address, sighting.port) for address in sighting.addresses]
            self._start(self._dial_sighting(sighting.label, where))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial_sighting(self, label: str, where: list[Address]) -> None:
        assert self.mdns is not None
        loop = asyncio.get_running_loop()
        guest = await self._dial(where, None)
        if guest is None:
            self.mdns.sightings.failed(label, loop.time())
        else:
            self._labels[label] = guest.node
            self.mdns.sightings.reached(label)

    def _try(self, name: str, where: Sequence[Address], node: NodeId | None) -> None:
        """Dial a target unless it is reached or rests."""
        target = self._targets.setdefault(name, _Target())
        if target.reached is not None and self.is_linked(target.reached):
            return
        now_s = time.monotonic()
        if now_s < target.due_s or len(self._tasks) >= MAX_DIALS:
            return
        target.due_s = now_s + LONGEST_REST_S  # until this dial has ended
        self._start(self._dial_target(target, where, node))

    async def _dial_target(
        self, target: _Target, where: Sequence[Address], node: NodeId | None
    ) -> None:
        guest = await self._dial(where, node)
        if guest is None:
            target.failed(time.monotonic())
        else:
            target.reached, target.rest_s, target.due_s = guest.node, 0.0, 0.0

    async def _dial(
        self, where: Sequence[Address], node: NodeId | None
    ) -> Guest | None:
        names = ", ".join(f"{host}:{port}" for host, port in where)
        try:
            guest = await dial(self.greeting, where, CONTROL, expect=node)
        except PeerError as exc:
            if len(self.troubles) < KEPT_TROUBLES or names in self.troubles:
                self.troubles[names] = str(exc)
            return None
        self.troubles.pop(names, None)
        self.welcome(guest)
        return guest

    async def _resolve(self) -> None:
        """Keep dialling the peers that were named, whatever their names mean today."""
        while self.static.peers:
            for answer in await self.static.resolve(Deadline.after(RESOLVE_S)):
                if answer.addresses:
                    where = [
                        (address, answer.peer.port) for address in answer.addresses
                    ]
                    self._try(f"peer {answer.peer}", where, None)
                elif len(self.troubles) < KEPT_TROUBLES:
                    self.troubles[str(answer.peer)] = answer.trouble
            await asyncio.sleep(FIRST_REST_S)
