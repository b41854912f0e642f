"""Gathering the facts: this machine, its network, and everybody who can be found.

The doctor is a guest: it announces nothing and joins nothing. It asks by multicast who
is there, dials every address of every node that was seen, named, or known to an agent,
and measures the links. All of it ends with one deadline.
"""

from __future__ import annotations

import asyncio
import platform
import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.discovery.multicast_check import MulticastReport, check_multicast
from ringleader.discovery.static_peers import StaticPeer, StaticPeers
from ringleader.doctor import candidates, local_machine
from ringleader.doctor.candidates import Lead
from ringleader.doctor.facts import (
    Candidate,
    Facts,
    Measurement,
    Outcome,
    Place,
    Visit,
)
from ringleader.doctor.link_measurement import Surveyor
from ringleader.doctor.probe_address import visit
from ringleader.errors import RingleaderError
from ringleader.identity import cluster_secret
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey, first_key, key_files
from ringleader.identity.storage.home import Home
from ringleader.ids import Incarnation, NodeId
from ringleader.node.peering.peer_connection import Greeting
from ringleader.node.peering.status_query import look
from ringleader.node.protocol import framing
from ringleader.node.protocol.framing import Hello
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.interfaces import Interface, choose_interfaces, list_interfaces
from ringleader.topology.node_profile import clean

MAX_THREADS = 16
"""All interfaces are listened at together, in two families each."""
RESOLVE_S = 2.0
LISTEN_S = 1.6
"""The slowest answer that the rules of mDNS allow takes 1.4 s."""
LISTEN_AGAIN_S = 2.5
"""Whoever was reached and not heard gets a second chance, and more time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to examine, and for how long."""

    home: Path
    peers: Sequence[StaticPeer] = ()
    interfaces: Sequence[str] = ()
    port: int = 0
    seconds: float = 8.0


async def examine(request: Request) -> Facts:
    """Look at everything. Takes two seconds on a lonely machine."""
    started_s = time.monotonic()
    threads = ThreadPoolExecutor(MAX_THREADS, "doctor")  # the loop ends them
    asyncio.get_running_loop().set_default_executor(threads)
    deadline = Deadline.after(request.seconds)
    everything = list_interfaces()
    chosen, refused = choose_interfaces(everything, request.interfaces or None)
    home = Home(request.home)
    cluster = cluster_secret.load(home)
    agents, agent_trouble = await _agents(home, cluster)
    pids = [shot.pid for shot in agents]
    local = Facts(
        name=_name(agents),
        version=metadata.version("ringleader"),
        protocol=framing.PROTOCOL,
        cluster=cluster.title if cluster else "",
        own=frozenset(_own_nodes(home)),
        chosen=chosen,
        refused=refused,
        agents=agents,
        agent_trouble=agent_trouble,
        taken=local_machine.taken_ports(request.port, pids),
        wanted_port=request.port,
        descriptors=local_machine.descriptors(pids),
        memory=local_machine.shared_memory(),
    )
    local_machine.make_room()
    own = {str(a.ip) for each in everything for a in each.addresses}
    search = _Search(local, own, cluster, _greeting(home, cluster, local), deadline)
    await search.run(request.peers)
    return replace(
        local,
        probes=search.probes,
        candidates=search.candidates(),
        took_s=time.monotonic() - started_s,
    )


def _name(agents: Sequence[Snapshot]) -> str:
    """What the others call this machine."""
    names = [row.name for shot in agents for row in shot.nodes if row.is_here]
    return clean((names or [platform.node()])[0]) or "this machine"


async def _agents(
    home: Home, cluster: ClusterSecret | None
) -> tuple[list[Snapshot], str]:
    if cluster is None:
        return [], ""
    try:
        sights = await asyncio.to_thread(look, home.path)
    except RingleaderError as exc:
        return [], str(exc)
    return [sight.snapshot for sight in sights], ""


def _own_nodes(home: Home) -> list[NodeId]:
    texts = [home.read(name, 1024) for name in key_files(home)]
    keys = [NodeKey.from_text(text) for text in texts if text is not None]
    return [key.node_id for key in keys if key is not None]


def _greeting(
    home: Home, cluster: ClusterSecret | None, local: Facts
) -> Greeting | None:
    """We speak in the name of this machine's node, if it has a key."""
    if cluster is None:
        return None
    key = first_key(home) if local.own else NodeKey.ephemeral()
    credentials = Credentials.issue(cluster, key)
    incarnation = Incarnation(secrets.token_hex(8))
    started_ms = time.time_ns() // 1_000_000

    def hello(purpose: str, subject: str) -> Hello:
        return Hello(
            protocol=framing.PROTOCOL,
            version=local.version,
            purpose=purpose,
            node=key.node_id,
            incarnation=incarnation,
            started_ms=started_ms,
            name=local.name,
            port=0,
            clock_s=time.time(),
            subject=subject,
        )

    return Greeting(credentials, hello)


@dataclass(slots=True)
class _Search:
    """Everybody who can be found. Lives on one loop, for one examination."""

    local: Facts
    own: set[str]
    """Addresses of this machine."""
    cluster: ClusterSecret | None
    greeting: Greeting | None
    deadline: Deadline
    probes: list[MulticastReport] = field(default_factory=list)
    _found: list[Candidate] = field(default_factory=list)
    _visits: dict[Place, asyncio.Task[Visit]] = field(default_factory=dict)
    _links: dict[Place, asyncio.Task[Measurement]] = field(default_factory=dict)
    _measured: set[NodeId] = field(default_factory=set)
    _surveyor: Surveyor | None = None

    async def run(self, peers: Sequence[StaticPeer]) -> None:
        """Follow what we know at first, then what is seen, then what those know."""
        if self.greeting is not None:
            self._surveyor = Surveyor(self.greeting, self.deadline)
        limit = Deadline.after(min(RESOLVE_S, self.deadline.left_s()))
        answers = await StaticPeers(peers).resolve(limit)
        known = [
            *candidates.from_answers(answers),
            *candidates.from_agents(self.local.agents),
        ]
        await asyncio.gather(self._follow(known), self._listen(known, LISTEN_S))
        await self._follow(candidates.from_probes(self.probes, self.local.chosen))
        shots = [v.snapshot for c in self._found for v in c.visits if v.snapshot]
        await self._follow(candidates.from_agents(shots))
        again_s = min(LISTEN_AGAIN_S, self.deadline.left_s())
        if any(self._is_doubtful(c) for c in self._all()):
            await self._listen(known, again_s)
        await asyncio.gather(*self._links.values())

    def candidates(self) -> list[Candidate]:
        """Each once, with everything we know of it; after ``run``."""
        return [replace(each, link=self._link(each)) for each in self._all()]

    def _all(self) -> list[Candidate]:
        heard = candidates.heard_hosts(self.probes)
        answering = candidates.answering_hosts(self.probes)
        return [
            replace(
                each,
                is_heard=any(host in heard for host, _ in each.places),
                is_answering=any(host in answering for host, _ in each.places),
            )
            for each in candidates.merge(self._found)
        ]

    def _link(self, candidate: Candidate) -> Measurement | None:
        found = [self._links.get(v.place) for v in candidate.visits]
        return next((task.result() for task in found if task is not None), None)

    def _is_doubtful(self, candidate: Candidate) -> bool:
        """Whether what it says by multicast matters, and it has said nothing yet."""
        near = [self.local.interface_to(v.place[0]) for v in candidate.visits]
        if candidate.is_here or not any(near):
            return False
        is_silent = candidate.outcome is Outcome.SILENT
        is_deaf = bool(candidate.reached) and not candidate.is_heard
        return is_deaf or (is_silent and not candidate.is_answering)

    async def _listen(self, known: Iterable[Lead], wait_s: float) -> None:
        """Ask by multicast on every interface, in both families where it has both."""
        call = list(dict.fromkeys(host for lead in known for host, _ in lead.places))
        key = self.cluster.mdns_key().reveal() if self.cluster else None

        def check(interface: Interface, version: int) -> MulticastReport:
            return check_multicast(
                interface, key=key, call=call, version=version, wait_s=wait_s
            )

        self.probes += await asyncio.gather(
            *(
                asyncio.to_thread(check, interface, version)
                for interface in self.local.chosen
                for version in sorted({a.version for a in interface.addresses})
            )
        )

    async def _follow(self, found: Iterable[Lead]) -> None:
        if self.greeting is not None:
            self._found += await asyncio.gather(*(self._one(lead) for lead in found))

    async def _one(self, lead: Lead) -> Candidate:
        is_here = candidates.is_ours(lead, self.own)
        visits = await asyncio.gather(*(self._visit(p) for p in lead.to_dial))
        candidate = Candidate(
            places=lead.places,
            sources=frozenset({lead.source}),
            visits=tuple(visits),
            known_as=lead.known_as,
            is_here=is_here,
            trouble=lead.trouble,
        )
        if candidate.reached and not is_here:
            self._start_measuring(candidate.reached[0])
        return candidate

    async def _visit(self, place: Place) -> Visit:
        assert self.greeting is not None
        if place not in self._visits:
            work = visit(self.greeting, place, self.deadline)
            self._visits[place] = asyncio.create_task(work)
        return await self._visits[place]

    def _start_measuring(self, best: Visit) -> None:
        """Meanwhile we go on looking for others. A clone of ours is not measured."""
        is_new = best.node not in self._measured and best.node not in self.local.own
        if is_new and best.node is not None and self._surveyor is not None:
            self._measured.add(best.node)
            work = self._surveyor.measure(best)
            self._links[best.place] = asyncio.create_task(work)
