"""Questions about the peers' health, answered for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringleader.membership.events import Health
from ringleader.membership.member import Member
from ringleader.membership.peer import Peer


@dataclass(frozen=True, slots=True)
class PeerHealth:
    """The record of one peer at one moment."""

    member: Member
    health: Health
    last_heard_s: float | None
    """On this node's clock; None: never."""
    latency_last_s: float | None
    latency_avg_s: float | None
    """Round trips: an average in which the newest counts for a fifth."""
    num_heard: int
    num_missed: int
    num_missed_in_row: int

    @property
    def uptime_ratio(self) -> float:
        """The share of heartbeats that came; 1.0 before there were any."""
        total = self.num_heard + self.num_missed
        return self.num_heard / total if total else 1.0


@dataclass(frozen=True, slots=True)
class HealthSummary:
    """How many peers there are of each kind."""

    total: int
    healthy: int
    suspect: int
    dead: int
    unknown: int


class HealthReport:
    """A picture of all peers, taken when it was asked for."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        shown = sorted((p for p in peers if p.is_admitted), key=lambda p: p.member)
        self.peers = tuple(_record(p) for p in shown)

    def healthy(self) -> tuple[Member, ...]:
        """Peers that speak."""
        return self._having(Health.HEALTHY)

    def suspect(self) -> tuple[Member, ...]:
        """Peers that are silent and keep their place."""
        return self._having(Health.SUSPECT)

    def dead(self) -> tuple[Member, ...]:
        """Peers the others go on without, until they are forgotten."""
        return self._having(Health.DEAD)

    def operational(self) -> tuple[Member, ...]:
        """All peers that are not dead."""
        return tuple(p.member for p in self.peers if p.health is not Health.DEAD)

    def of(self, member: Member) -> PeerHealth | None:
        """The record of one life of a peer; None: no such peer."""
        return next((p for p in self.peers if p.member == member), None)

    def summary(self) -> HealthSummary:
        """How many there are of each kind."""
        kinds = [p.health for p in self.peers]
        return HealthSummary(
            total=len(kinds),
            healthy=kinds.count(Health.HEALTHY),
            suspect=kinds.count(Health.SUSPECT),
            dead=kinds.count(Health.DEAD),
            unknown=kinds.count(Health.UNKNOWN),
        )

    def is_cluster_healthy(self) -> bool:
        """Whether no peer is dead."""
        return not self.dead()

    def health_percentage(self) -> float:
        """The share of peers that are healthy; 100 when there are none."""
        return 100 * len(self.healthy()) / len(self.peers) if self.peers else 100.0

    def _having(self, health: Health) -> tuple[Member, ...]:
        return tuple(p.member for p in self.peers if p.health is health)


def _record(peer: Peer) -> PeerHealth:
    return PeerHealth(
        member=peer.member,
        health=peer.health,
        last_heard_s=peer.last_heard_s if peer.num_heard else None,
        latency_last_s=peer.latency_last_s,
        latency_avg_s=peer.latency_avg_s,
        num_heard=peer.num_heard,
        num_missed=peer.num_missed,
        num_missed_in_row=peer.num_missed_in_row,
    )
