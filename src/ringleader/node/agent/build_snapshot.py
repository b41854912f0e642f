"""``build_snapshot``: collects what an agent knows into a ``Snapshot``."""

from __future__ import annotations

import os
import time

from ringleader.ids import NodeId
from ringleader.membership.health_report import HealthReport, PeerHealth
from ringleader.membership.member import Member
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.peering import link_plan
from ringleader.node.protocol.node_state import NodeState
from ringleader.node.protocol.snapshot import HealthCounts, NodeRow, Snapshot
from ringleader.topology.interfaces import describe_refused


def build_snapshot(core: AgentCore) -> Snapshot:
    """Return everything ``core`` knows now."""
    view = core.membership.machine.view
    book = core.membership.machine.health
    members = list(view.members) if view else [core.me]
    known = (*book.healthy(), *book.suspect(), *book.dead())
    others = [member for member in known if member not in members]
    return Snapshot(
        cluster=core.identity.cluster.title,
        node=core.me.node,
        epoch=view.id.counter if view else 0,
        leader=view.id.leader if view else "",
        ring=[member.node for member in members],
        nodes=[_row(core, m, in_view=m in members) for m in [*members, *others]],
        health=_health(book),
        events=list(core.events.events),
        mlx=link_plan.mlx_hostfile(core.view_state.states) if core.view_state else "",
        troubles=_troubles(core),
        clones=list(core.events.clones),
        coordinator=core.coordinator.address,
        coordinator_rank=core.coordinator.rank,
        coordinator_trouble=core.coordinator.trouble,
        rejected=core.acceptor.num_rejected,
        pid=os.getpid(),
        uptime_s=time.monotonic() - core.started_s,
        is_resident=core.config.is_resident,
    )


def _health(book: HealthReport) -> HealthCounts:
    summary = book.summary()
    return HealthCounts(
        total=summary.total,
        healthy=summary.healthy,
        suspect=summary.suspect,
        dead=summary.dead,
        unknown=summary.unknown,
        percentage=book.health_percentage(),
        is_healthy=book.is_cluster_healthy(),
    )


def _row(core: AgentCore, member: Member, *, in_view: bool) -> NodeRow:
    is_here = member == core.me
    health = core.membership.machine.health.of(member)
    view = core.membership.machine.view
    state = core.view_state.states.get(member.node) if core.view_state else None
    if not in_view:
        state = None
    requests = state.job_requests if state else []
    return NodeRow(
        node=member.node,
        name=core.events.names.get(member.node, "?"),
        health="healthy" if is_here else str(health.health) if health else "unknown",
        is_leader=in_view and view is not None and view.id.leader == member.node,
        is_here=is_here,
        in_view=in_view,
        address=_address(core, member.node),
        latency_s=_latency_s(health, is_here=is_here),
        clock_ahead_s=0.0 if is_here else core.clocks.wall.get(member.node),
        version=_version(core, member, state),
        host=state.host if state else "",
        profile=state.profile if state else None,
        links={str(k): v for k, v in state.links.items()} if state else {},
        jobs=sorted(request.job for request in requests),
        waiting_jobs=sorted(each.job for each in requests if not each.round),
        accepts_jobs=_accepts_jobs(core, member, state),
    )


def _accepts_jobs(core: AgentCore, member: Member, state: NodeState | None) -> bool:
    """Return the user's word: of this node at once, of others as they published it."""
    if member == core.me:
        return core.config.accepts_jobs
    return state.accepts_jobs if state else False


def _latency_s(health: PeerHealth | None, *, is_here: bool) -> float | None:
    if is_here:
        return 0.0
    round_trip_s = health.latency_avg_s if health else None
    return None if round_trip_s is None else round_trip_s / 2


def _version(core: AgentCore, member: Member, state: NodeState | None) -> str:
    """Return the release of ringleader on a node."""
    if member == core.me:
        return core.local.profile.ringleader_version
    link = core.membership.links.get(member)
    if link is not None:
        return link.connection.hello.version
    return state.profile.ringleader_version if state else ""


def _address(core: AgentCore, node: NodeId) -> str:
    """Return the address by which we reach a node, or else its best one."""
    if node == core.me.node:
        return _join((core.local.addresses or ["no network"])[0], core.local.port)
    link = core.membership.links.to_node(node)
    if link is not None:
        return _join(*link.connection.address)
    known = core.view_state.addresses().get(node) if core.view_state else None
    return _join(*known[0]) if known else ""


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _troubles(core: AgentCore) -> list[str]:
    found = list(core.events.clones)
    if core.coordinator.trouble:
        found.append(core.coordinator.trouble)
    if core.mdns.trouble is not None:
        found.append(str(core.mdns.trouble))
    if not core.local.chosen:
        reasons = describe_refused(core.local.refused) or "there is none"
        found.append(f"no network interface to use ({reasons})")
    if core.mdns.sightings.num_foreign:
        number = core.mdns.sightings.num_foreign
        nodes = "1 other node" if number == 1 else f"{number} other nodes"
        found.append(
            f"{nodes} on this network with another secret: another cluster, or a "
            "mistyped phrase"
        )
    found += [f"{where}: {why}" for where, why in core.dialer.troubles.items()]
    for who, why in core.acceptor.refusals.items():
        found.append(f"connection from {who}: {why}")
    for node, why in core.link_prober.troubles.items():
        found.append(f"link to {core.events.names.get(node, 'a node')}: {why}")
    return found
