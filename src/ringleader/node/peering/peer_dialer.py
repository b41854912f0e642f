"""``PeerDialer``: keeps control links to all nodes that can be found.

Targets are the nodes mDNS saw, the peers the user named, the workers registered at the
coordinator, the members of the view, and the nodes that our peers hear: those peers are
asked for their addresses. So one machine that all others know is enough for all of them
to find each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from ringleader.deadline import Deadline
from ringleader.discovery.mdns import Mdns
from ringleader.discovery.static_peers import StaticPeers
from ringleader.errors import PeerError
from ringleader.identity.node_key import public_key
from ringleader.ids import NodeId, short
from ringleader.node.peering.connect import connect_control
from ringleader.node.peering.peer_connection import (
    Address,
    HandshakeContext,
    PeerConnection,
)

EVERY_S = 0.1
MAX_DIALS = 4
ASK_AFTER_S = 0.3
"""A node that our peers hear is usually found by ourselves within this time."""
MAX_ASKS = 2
"""Questions at a time. They have a limit of their own, so that a peer that names
nodes which do not exist delays no other dial."""
RESOLVE_S = 5.0
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 10.0
MAX_TROUBLES = 32


class Directory(Protocol):
    """What is known of other nodes."""

    def is_linked(self, node: NodeId) -> bool:
        """Return whether ``node`` is heard on a control link, or it is this one."""

    def members(self) -> Mapping[NodeId, Sequence[Address]]:
        """Return the addresses of the nodes in the view, as they announced them."""

    def unheard(self) -> Mapping[NodeId, Sequence[NodeId]]:
        """Return the nodes without a link to us that peers hear, with those peers."""

    async def ask(self, peer: NodeId, wanted: NodeId) -> Sequence[Address]:
        """Ask ``peer`` for the addresses of ``wanted``; raises ``PeerError``."""


@dataclass(slots=True)
class _Target:
    """A named peer or another node, and when to dial it again."""

    retry_s: float = 0.0
    due_s: float = 0.0
    num_tries: int = 0
    reached: NodeId | None = None

    def failed(self, now_s: float, longest_s: float) -> None:
        self.retry_s = min(max(FIRST_RETRY_S, 2 * self.retry_s), longest_s)
        self.due_s = now_s + self.retry_s
        self.reached = None


@dataclass(slots=True)
class PeerDialer:
    """Dials nodes that are not linked yet. Lives on the event loop of the agent."""

    handshake: HandshakeContext
    mdns: Mdns | None
    static: StaticPeers
    on_connected: Callable[[PeerConnection], None]
    directory: Directory
    registered: Callable[[], Mapping[str, Sequence[Address]]] = dict
    """Returns the other workers at the coordinator with their addresses."""
    longest_retry_s: float = LONGEST_RETRY_S
    troubles: dict[str, str] = field(default_factory=dict)
    """Targets that could not be reached and why, for ``status`` and ``doctor``."""
    _labels: dict[str, NodeId] = field(default_factory=dict)
    _targets: dict[str, _Target] = field(default_factory=dict)
    _unheard: dict[NodeId, _Target] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _asking: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Dial until cancelled."""
        resolving = asyncio.create_task(self._dial_static_peers())
        try:
            while True:
                self._dial_sightings()
                self._dial_registered()
                self._dial_members()
                self._dial_unheard()
                await asyncio.sleep(EVERY_S)
        finally:
            for task in [resolving, *self._tasks, *self._asking]:
                task.cancel()

    def link_lost(self, node: NodeId) -> None:
        """Allow a node to be dialled again after its link ended."""
        now_s = asyncio.get_running_loop().time()
        if self.mdns is not None:
            self.mdns.seek()
        for label in [k for k, v in self._labels.items() if v == node]:
            del self._labels[label]
            if self.mdns is not None:
                self.mdns.sightings.failed(label, now_s)
        for target in self._targets.values():
            if target.reached == node:
                target.failed(time.monotonic(), self.longest_retry_s)

    def _dial_registered(self) -> None:
        """Dial the workers at the coordinator: hints, as sightings are."""
        found = {f"worker {name}": (name, to) for name, to in self.registered().items()}
        for key in [k for k in self._targets if k.startswith("worker ")]:
            if key not in found:
                del self._targets[key]
        for key, (name, addresses) in found.items():
            node = NodeId(name) if public_key(name) is not None else None
            if addresses and not (node is not None and self.directory.is_linked(node)):
                self._try(key, addresses, node)

    def _dial_members(self) -> None:
        for node, addresses in self.directory.members().items():
            if not self.directory.is_linked(node) and addresses:
                self._try(f"member {short(node)}", addresses, node)

    def _dial_unheard(self) -> None:
        """Dial nodes that our peers hear and we do not, at the addresses they tell."""
        unheard, now_s = self.directory.unheard(), time.monotonic()
        for node in [n for n in self._unheard if n not in unheard]:
            del self._unheard[node]
            self.troubles.pop(f"node {short(node)}", None)
        for node, peers in unheard.items():
            if node not in self._unheard:
                self._unheard[node] = _Target(due_s=now_s + ASK_AFTER_S)
            target = self._unheard[node]
            if now_s >= target.due_s and len(self._asking) < MAX_ASKS:
                target.due_s = inf  # until this attempt has ended
                peer = peers[target.num_tries % len(peers)]
                target.num_tries += 1
                _run(self._ask(target, peer, node), self._asking)

    async def _ask(self, target: _Target, peer: NodeId, node: NodeId) -> None:
        name = f"node {short(node)}"
        try:
            addresses = await self.directory.ask(peer, node)
            connection = await connect_control(self.handshake, addresses, node)
        except PeerError as exc:
            if node in self._unheard:
                self._note(name, str(exc))
            target.failed(time.monotonic(), self.longest_retry_s)
        else:
            self.troubles.pop(name, None)
            target.due_s = time.monotonic() + LONGEST_RETRY_S
            self.on_connected(connection)

    def _dial_sightings(self) -> None:
        if self.mdns is None:
            return
        sightings = self.mdns.sightings
        while len(self._tasks) < MAX_DIALS:
            sighting = sightings.next_to_dial(asyncio.get_running_loop().time())
            if sighting is None:
                return
            addresses = [(address, sighting.port) for address in sighting.addresses]
            _run(self._dial_sighting(sighting.label, addresses), self._tasks)

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
        if target.reached is not None and self.directory.is_linked(target.reached):
            return
        now_s = time.monotonic()
        if now_s < target.due_s or len(self._tasks) >= MAX_DIALS:
            return
        target.due_s = now_s + LONGEST_RETRY_S  # until this attempt has ended
        _run(self._dial_target(target, addresses, node), self._tasks)

    async def _dial_target(
        self, target: _Target, addresses: Sequence[Address], node: NodeId | None
    ) -> None:
        connection = await self._dial(addresses, node)
        if connection is None:
            target.failed(time.monotonic(), self.longest_retry_s)
        else:
            target.reached, target.retry_s, target.due_s = connection.node, 0.0, 0.0

    async def _dial(
        self, addresses: Sequence[Address], node: NodeId | None
    ) -> PeerConnection | None:
        names = ", ".join(f"{host}:{port}" for host, port in addresses)
        try:
            connection = await connect_control(self.handshake, addresses, node)
        except PeerError as exc:
            self._note(names, str(exc))
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
                else:
                    self._note(str(answer.peer), answer.trouble)
            await asyncio.sleep(FIRST_RETRY_S)

    def _note(self, what: str, trouble: str) -> None:
        if len(self.troubles) < MAX_TROUBLES or what in self.troubles:
            self.troubles[what] = trouble


def _run(work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> None:
    """Run a task and hold it in ``tasks`` until it ends."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
