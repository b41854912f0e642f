"""What an agent knows, as a snapshot."""

from __future__ import annotations

import os
import time

from ringleader.ids import NodeId
from ringleader.membership.member import Member
from ringleader.node.agent.agent_core import Resident
from ringleader.node.peering import link_plan
from ringleader.node.protocol.snapshot import NodeRow, Snapshot


def build_snapshot(resident: Resident) -> Snapshot:
    """Everything ``resident`` knows now."""
    view = resident.cluster.machine.view
    book = resident.cluster.machine.health
    members = list(view.members) if view else [resident.me]
    known = (*book.healthy(), *book.suspect(), *book.dead())
    others = [member for member in known if member not in members]
    return Snapshot(
        cluster=resident.keeper.cluster.title,
        node=resident.me.node,
        epoch=view.id.counter if view else 0,
        leader=view.id.leader if view else "",
        ring=[member.node for member in members],
        nodes=[_row(resident, m, in_view=m in members) for m in [*members, *others]],
        mlx=_mlx(resident),
        troubles=_troubles(resident),
        clones=list(resident.story.clones),
        rejected=resident.door.num_rejected,
        pid=os.getpid(),
        uptime_s=time.monotonic() - resident.born_s,
    )


def _mlx(resident: Resident) -> str:
    if resident.table is None:
        return ""
    known = link_plan.build_graph(resident.table.seats)
    return known.mlx_hostfile() if known.can_form_ring() else ""


def _row(resident: Resident, member: Member, *, in_view: bool) -> NodeRow:
    is_here = member == resident.me
    health = resident.cluster.machine.health.of(member)
    link = resident.cluster.links.get(member)
    view = resident.cluster.machine.view
    seat = resident.table.seats.get(member.node) if resident.table else None
    return NodeRow(
        node=member.node,
        name=resident.story.names.get(member.node, "?"),
        health="healthy" if is_here else str(health.health) if health else "unknown",
        is_leader=in_view and view is not None and view.id.leader == member.node,
        is_here=is_here,
        in_view=in_view,
        address=_address(resident, member.node),
        latency_s=health.latency_avg_s / 2
        if health and health.latency_avg_s is not None
        else None,
        clock_ahead_s=resident.clocks.get(member.node),
        version=link.guest.hello.version if link else "",
        host=seat.host if seat and in_view else "",
        profile=seat.profile if seat and in_view else None,
        links={str(k): v for k, v in seat.links.items()} if seat and in_view else {},
        jobs=sorted(t.job for t in seat.tickets) if seat and in_view else [],
    )


def _address(resident: Resident, node: NodeId) -> str:
    link = resident.cluster.links.to_node(node)
    if link is not None:
        return f"{link.guest.address[0]}:{link.guest.address[1]}"
    if node == resident.me.node:
        return f"{(resident.addresses() or ['no network'])[0]}:{resident.port}"
    return ""


def _troubles(resident: Resident) -> list[str]:
    found = list(resident.story.clones)
    if resident.mdns.trouble is not None:
        found.append(str(resident.mdns.trouble))
    if not resident.chosen:
        reasons = "; ".join(f"{each.name}: {why}" for each, why in resident.refused)
        found.append(f"no network interface to use ({reasons})")
    if resident.mdns.sightings.num_foreign:
        found.append(
            f"{resident.mdns.sightings.num_foreign} other nodes on this network have "
            "another secret: another cluster, or a mistyped phrase"
        )
    found += [f"{where}: {why}" for where, why in resident.scout.troubles.items()]
    for node, why in resident.survey.troubles.items():
        found.append(f"link to {resident.story.names.get(node, 'a node')}: {why}")
    return found
