"""Everything an agent knows at one moment: what ``ringleader status`` shows."""

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
    """How far its wall clock is ahead of ours; it harms nothing, but logs confuse."""
    version: str
    profile: NodeProfile | None
    host: str = ""
    """Equal on nodes that share memory; empty where it is not known."""
    links: dict[str, LinkProfile]
    """Towards other nodes, as it measured them itself."""
    jobs: list[str]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The cluster, seen from one node."""

    cluster: str
    node: str
    epoch: int
    leader: str
    ring: list[str]
    """Node ids in ring order."""
    nodes: list[NodeRow]
    mlx: str = ""
    """The ring as ``mlx.launch --hostfile`` reads it; empty where there is none."""
    troubles: list[str]
    """What is wrong, as far as this node can tell: clones, strangers, no mDNS."""
    clones: list[str] = []
    """Of the troubles, those that tell of two machines with one key."""
    rejected: int
    """How many connections were turned away at the door."""
    pid: int
    uptime_s: float

    def plain(self) -> dict[str, object]:
        """What JSON can hold."""
        made: dict[str, object] = msgspec.to_builtins(self)
        return made
