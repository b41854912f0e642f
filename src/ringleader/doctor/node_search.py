"""``NodeSearch``: finds all nodes that can be found, dials them, measures links."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ringleader.deadline import Deadline
from ringleader.discovery.multicast_check import MulticastReport, check_multicast
from ringleader.discovery.static_peers import StaticPeer, StaticPeers
from ringleader.doctor import candidates
from ringleader.doctor.candidates import Hint
from ringleader.doctor.facts import (
    Address,
    Candidate,
    DialOutcome,
    DialResult,
    Facts,
    LinkMeasurement,
)
from ringleader.doctor.link_measurement import LinkMeasurer
from ringleader.doctor.probe_address import probe_address
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.user_credentials import UserCredentials
from ringleader.ids import NodeId
from ringleader.node.peering.peer_connection import HandshakeContext
from ringleader.topology.interfaces import Interface

RESOLVE_S = 2.0
LISTEN_S = 1.6
"""The slowest answer that the mDNS RFC allows takes 1.4 s."""
LISTEN_AGAIN_S = 2.5
"""A node that was reached but not heard gets a second chance, and more time."""


@dataclass(slots=True)
class NodeSearch:
    """One search. Lives on one event loop."""

    local: Facts
    own: set[str]
    """Addresses of this machine."""
    cluster: ClusterSecret | UserCredentials | None
    handshake: HandshakeContext | None
    """None if this machine is in no cluster; then nothing is dialled."""
    deadline: Deadline
    multicast: list[MulticastReport] = field(default_factory=list)
    _found: list[Candidate] = field(default_factory=list)
    _dials: dict[Address, asyncio.Task[DialResult]] = field(default_factory=dict)
    _links: dict[Address, asyncio.Task[LinkMeasurement]] = field(default_factory=dict)
    _measured: set[NodeId] = field(default_factory=set)
    _measurer: LinkMeasurer | None = None

    async def run(self, peers: Sequence[StaticPeer]) -> None:
        """Dial the known nodes, then those seen by multicast, then those they know."""
        if self.handshake is not None:
            self._measurer = LinkMeasurer(self.handshake, self.deadline)
        limit = Deadline.after(min(RESOLVE_S, self.deadline.left_s()))
        resolved = await StaticPeers(peers).resolve(limit)
        known = [
            *candidates.from_named_peers(resolved),
            *candidates.from_snapshots(self.local.agents),
        ]
        await asyncio.gather(self._follow(known), self._listen(known, LISTEN_S))
        await self._follow(candidates.from_multicast(self.multicast, self.local.chosen))
        snapshots = [d.snapshot for c in self._found for d in c.dials if d.snapshot]
        await self._follow(candidates.from_snapshots(snapshots))
        again_s = min(LISTEN_AGAIN_S, self.deadline.left_s())
        if any(self._is_doubtful(c) for c in self._merged()):
            await self._listen(known, again_s)
        await asyncio.gather(*self._links.values())

    def candidates(self) -> list[Candidate]:
        """Return each candidate once, with everything known of it; after ``run``."""
        return [replace(each, link=self._link(each)) for each in self._merged()]

    def _merged(self) -> list[Candidate]:
        heard = candidates.heard_hosts(self.multicast)
        answering = candidates.answering_hosts(self.multicast)
        return [
            replace(
                each,
                is_heard=any(host in heard for host, _ in each.addresses),
                is_answering=any(host in answering for host, _ in each.addresses),
            )
            for each in candidates.merge(self._found)
        ]

    def _link(self, candidate: Candidate) -> LinkMeasurement | None:
        found = [self._links.get(dial.address) for dial in candidate.dials]
        return next((task.result() for task in found if task is not None), None)

    def _is_doubtful(self, candidate: Candidate) -> bool:
        """Return whether its multicast matters and none was heard yet."""
        near = [self.local.interface_to(d.address[0]) for d in candidate.dials]
        if candidate.is_here or not any(near):
            return False
        is_silent = candidate.outcome is DialOutcome.SILENT
        is_unheard = bool(candidate.reached) and not candidate.is_heard
        return is_unheard or (is_silent and not candidate.is_answering)

    async def _listen(self, known: Iterable[Hint], wait_s: float) -> None:
        """Ask by multicast on every interface, in each of its address families."""
        call = list(dict.fromkeys(host for hint in known for host, _ in hint.addresses))
        key = self.cluster.mdns_key().reveal() if self.cluster else None

        def check(interface: Interface, version: int) -> MulticastReport:
            return check_multicast(
                interface, key=key, call=call, version=version, wait_s=wait_s
            )

        self.multicast += await asyncio.gather(
            *(
                asyncio.to_thread(check, interface, version)
                for interface in self.local.chosen
                for version in sorted({a.version for a in interface.addresses})
            )
        )

    async def _follow(self, hints: Iterable[Hint]) -> None:
        if self.handshake is not None:
            found = (self._examine(self.handshake, hint) for hint in hints)
            self._found += await asyncio.gather(*found)

    async def _examine(self, handshake: HandshakeContext, hint: Hint) -> Candidate:
        is_here = candidates.is_here(hint, self.own)
        dials = await asyncio.gather(*(self._dial(handshake, a) for a in hint.to_dial))
        candidate = Candidate(
            addresses=hint.addresses,
            sources=frozenset({hint.source}),
            dials=tuple(dials),
            known_as=hint.known_as,
            is_here=is_here,
            trouble=hint.trouble,
        )
        if candidate.reached and not is_here:
            self._start_measuring(candidate.reached[0])
        return candidate

    async def _dial(self, handshake: HandshakeContext, address: Address) -> DialResult:
        """Dial an address once, however many hints name it."""
        if address not in self._dials:
            work = probe_address(handshake, address, self.deadline)
            self._dials[address] = asyncio.create_task(work)
        return await self._dials[address]

    def _start_measuring(self, best: DialResult) -> None:
        """Measure a link while the search goes on. Clones of our key are skipped."""
        is_new = best.node not in self._measured and best.node not in self.local.own
        if is_new and best.node is not None and self._measurer is not None:
            self._measured.add(best.node)
            work = self._measurer.measure(best)
            self._links[best.address] = asyncio.create_task(work)
