"""HealthReport answers questions about the health of all peers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringleader.membership.events import Health
from ringleader.membership.member import Member
from ringleader.membership.peer import Peer


@dataclass(frozen=True, slots=True)
class PeerHealth:
    """The health of one peer at one moment."""

    member: Member
    health: Health
    last_heard_s: float | None
    """On this node's clock; None if never."""
    latency_last_s: float | None
    latency_avg_s: float | None
    """Average round trip, in which the newest one counts for a fifth."""
    num_heard: int
    num_missed: int
    num_missed_in_row: int


@dataclass(frozen=True, slots=True)
class HealthSummary:
    """The number of peers in each state of health."""

    total: int
    healthy: int
    suspect: int
    dead: int
    unknown: int


class HealthReport:
    """The health of all peers at the moment it is made."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        shown = sorted((p for p in peers if p.is_admitted), key=lambda p: p.member)
        self.peers = tuple(_record(p) for p in shown)

    def healthy(self) -> tuple[Member, ...]:
        """Return the peers that are heard from."""
        return self._having(Health.HEALTHY)

    def suspect(self) -> tuple[Member, ...]:
        """Return the peers that are silent but still members."""
        return self._having(Health.SUSPECT)

    def dead(self) -> tuple[Member, ...]:
        """Return the peers that the others go on without, until they are forgotten."""
        return self._having(Health.DEAD)

    def of(self, member: Member) -> PeerHealth | None:
        """Return the health of one life of a peer, or None."""
        return next((p for p in self.peers if p.member == member), None)

    def summary(self) -> HealthSummary:
        """Return the number of peers in each state of health."""
        kinds = [p.health for p in self.peers]
        return HealthSummary(
            total=len(kinds),
            healthy=kinds.count(Health.HEALTHY),
            suspect=kinds.count(Health.SUSPECT),
            dead=kinds.count(Health.DEAD),
            unknown=kinds.count(Health.UNKNOWN),
        )

    def is_cluster_healthy(self) -> bool:
        """Return whether no peer is dead."""
        return not self.dead()

    def health_percentage(self) -> float:
        """Return the percentage of peers that are healthy; 100 without peers."""
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
