"""``Snapshot``: everything an agent knows at one moment, for ``ringleader status``."""

from __future__ import annotations

import msgspec

from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import NodeProfile


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the cluster, seen from the node that was asked."""

    node: str
    name: str
    health: str
    is_leader: bool
    is_here: bool
    """Whether it is the node that was asked."""
    in_view: bool
    address: str
    latency_s: float | None
    clock_ahead_s: float | None
    """How far its wall clock is ahead of ours. Harmless, but logs get confusing."""
    version: str
    profile: NodeProfile | None
    host: str = ""
    """Equal on nodes that share memory; empty if unknown."""
    links: dict[str, LinkProfile]
    """Links to other nodes, as this node measured them."""
    jobs: list[str]
    waiting_jobs: list[str] = []
    """Those of ``jobs`` that wait for machines."""
    accepts_jobs: bool = False
    """Whether machines of the cluster may run programs there as its user."""


class HealthCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Number of other nodes in each state of health, seen from one node."""

    total: int
    healthy: int
    suspect: int
    dead: int
    unknown: int
    percentage: float
    """Share of the other nodes that are healthy; 100 if there are none."""
    is_healthy: bool
    """Whether none of them is dead."""


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the cluster, seen from one node."""

    time_s: float
    """Wall clock of the node that saw it, seconds since 1970."""
    kind: str
    """An ``event_log.Kind``, for programs."""
    text: str
    """Sentence for the user."""
    node: str = ""
    """The node it happened to; empty if to several."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The cluster, seen from one node."""

    cluster: str
    node: str
    epoch: int
    leader: str
    ring: list[str]
    """Node ids in ring order."""
    nodes: list[NodeRow]
    health: HealthCounts
    events: list[ClusterEvent] = []
    """The latest events, the oldest first."""
    mlx: str = ""
    """The ring as a hostfile for ``mlx.launch --hostfile``; empty if there is none."""
    troubles: list[str]
    """Problems this node knows of: cloned keys, unreachable peers, no mDNS."""
    clones: list[str] = []
    """The subset of ``troubles`` that reports two machines with one key."""
    coordinator: str = ""
    """host:port of the coordinator that it uses; empty: none."""
    coordinator_rank: int = -1
    """Its rank there; -1: none yet."""
    coordinator_trouble: str = ""
    """The one of ``troubles`` that concerns the coordinator."""
    rejected: int
    """Number of connections the acceptor refused."""
    pid: int
    uptime_s: float
    is_resident: bool = False
    """Whether ``ringleader up`` started the agent."""

    def plain(self) -> dict[str, object]:
        """Return the snapshot as values that JSON can hold."""
        made: dict[str, object] = msgspec.to_builtins(self)
        return made
