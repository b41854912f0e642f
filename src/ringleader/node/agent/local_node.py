"""``LocalNode``: how this node describes itself to others."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member
from ringleader.node.agent.job_reports import JobReports
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.hello import PROTOCOL, AgentHello
from ringleader.node.protocol.node_state import (
    JobRequest,
    NodeState,
    SplitSeen,
)
from ringleader.topology.interfaces import (
    Interface,
    interface_towards,
    usable_interfaces,
)
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import (
    NodeProfile,
    clean,
    find_accelerators,
    measure,
)
from ringleader.transport.host_token import host_token

MAX_ADDRESSES = 16
ACCELERATORS_S = 10.0


@dataclass(slots=True)
class LocalNode:
    """Identity, hardware, name and network interfaces of this node."""

    member: Member
    name: str
    profile: NodeProfile
    port: int
    wanted_interfaces: Sequence[str] = ()
    """Names the user gave; empty: chosen automatically."""
    chosen: list[Interface] = field(default_factory=list)
    refused: list[tuple[Interface, str]] = field(default_factory=list)
    """Interfaces that are not used, each with the reason."""
    paths: dict[NodeId, str] = field(default_factory=dict)
    """Per linked node our address at which the link ends: the other one reaches it."""

    @classmethod
    def measure(cls, node: NodeId, config: AgentConfig, port: int) -> LocalNode:
        """Look at this machine and its network interfaces."""
        profile = measure()
        member = Member(
            time.time_ns() // 1_000_000, node, Incarnation(secrets.token_hex(8))
        )
        name = clean(config.name or profile.host) or "node"
        made = cls(member, name, profile, port, config.interfaces)
        made.find_interfaces()
        return made

    def find_interfaces(self) -> None:
        """Choose the network interfaces again: the machine may have moved."""
        self.chosen, self.refused = usable_interfaces(self.wanted_interfaces)

    def find_accelerators(self) -> bool:
        """Look for accelerators, which is slow; return whether the profile changed."""
        found = find_accelerators(Deadline.after(ACCELERATORS_S))
        if not found or found == self.profile.accelerators:
            return False
        self.profile = self.profile.with_accelerators(found)
        return True

    @property
    def addresses(self) -> list[str]:
        """Addresses of this node, the best first, and last those that links prove.

        The latter are those of an overlay (WireGuard, Nebula) between networks: such an
        interface is not chosen by itself, but members that the user named are linked
        over it, and there may be no other way between them.
        """
        return self.addresses_and(*self.paths.values())

    def addresses_and(self, *proven: str) -> list[str]:
        """Return the addresses of the chosen interfaces, and those ``proven``."""
        also = self._beside(proven)
        return [*self._chosen_addresses()[: MAX_ADDRESSES - len(also)], *also]

    def _chosen_addresses(self) -> list[str]:
        return [str(a.ip) for each in self.chosen for a in each.addresses]

    def _beside(self, proven: Iterable[str]) -> list[str]:
        """Return those ``proven`` that are not of a chosen interface."""
        if self.wanted_interfaces:
            return []
        return sorted({*proven} - {*self._chosen_addresses()})[: MAX_ADDRESSES // 2]

    def interface_towards(self, peers: Mapping[NodeId, Collection[str]]) -> str:
        """Return the interface that reaches peers with these addresses, or ''.

        A link over an interface that was not chosen is the only way to that peer.
        """
        proven = self._beside(self.paths.values())
        overlay = {
            n: own for n, own in self.paths.items() if n in peers and own in proven
        }
        ends = [[overlay[n]] if n in overlay else each for n, each in peers.items()]
        carrying = [
            each
            for each, _ in self.refused
            if any(str(a.ip) in overlay.values() for a in each.addresses)
        ]
        return interface_towards(carrying or self.chosen, ends)

    def hello(self, purpose: str, subject: str) -> AgentHello:
        """Return our hello for a new connection."""
        return AgentHello(
            protocol=PROTOCOL,
            version=self.profile.ringleader_version,
            purpose=purpose,
            node=self.member.node,
            incarnation=self.member.incarnation,
            started_ms=self.member.started_ms,
            name=self.name,
            port=self.port,
            addresses=self.addresses,
            clock_s=time.time(),
            monotonic_s=time.monotonic(),
            subject=subject,
        )

    def state(  # noqa: PLR0913 - one for each part of the agent that knows something
        self,
        *,
        links: dict[NodeId, LinkProfile],
        clock_offsets: dict[NodeId, float],
        job_requests: list[JobRequest],
        reports: JobReports,
        ready_jobs: list[str],
        split: SplitSeen | None,
        coordinator_rank: int,
        accepts_jobs: bool = False,
    ) -> NodeState:
        """Return the state to publish, with what other parts of the agent know."""
        return NodeState(
            name=self.name,
            host=host_token().hex(),
            addresses=self.addresses,
            port=self.port,
            profile=self.profile,
            links=links,
            clock_offsets=clock_offsets,
            job_requests=job_requests,
            ended_jobs=reports.ended_jobs,
            failures=reports.failures,
            workers=reports.workers,
            ready_jobs=ready_jobs,
            split=split,
            coordinator_rank=coordinator_rank,
            accepts_jobs=accepts_jobs,
        )
