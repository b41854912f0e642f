"""``ringleader status`` shows health and events in words."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from ringleader.cli.status import _render
from ringleader.ids import NodeId
from ringleader.node.peering.status_query import StatusReport
from ringleader.node.protocol.snapshot import (
    ClusterEvent,
    HealthCounts,
    NodeRow,
    Snapshot,
)
from ringleader.topology.node_profile import measure

A = NodeId("a" * 52)


def snapshot(health: HealthCounts, events: list[ClusterEvent]) -> Snapshot:
    row = NodeRow(
        node=A,
        name="attic",
        health="healthy",
        is_leader=True,
        is_here=True,
        in_view=True,
        address="10.0.0.1:4000",
        latency_s=None,
        clock_ahead_s=None,
        version="1",
        profile=None,
        links={},
        jobs=[],
    )
    return Snapshot(
        cluster="home",
        node=A,
        epoch=3,
        leader=A,
        ring=[A],
        nodes=[row],
        health=health,
        events=events,
        troubles=[],
        rejected=0,
        pid=1,
        uptime_s=1.0,
    )


def counts(healthy: int, suspect: int, dead: int) -> HealthCounts:
    total = healthy + suspect + dead
    return HealthCounts(
        total=total,
        healthy=healthy,
        suspect=suspect,
        dead=dead,
        unknown=0,
        percentage=100 * healthy / total if total else 100.0,
        is_healthy=not dead,
    )


def shown(health: HealthCounts, events: list[ClusterEvent]) -> str:
    out = io.StringIO()
    report = StatusReport("attic, process 1", snapshot(health, events))
    Console(file=out, width=160).print(_render([report], is_live=True))
    return out.getvalue()


@pytest.mark.parametrize(
    ("health", "line"),
    [
        (counts(0, 0, 0), "health: no other node is known yet"),
        (counts(1, 0, 0), "health: 100 % of 1 other node (1 healthy)"),
        (
            counts(2, 1, 1),
            "health: 50 % of 4 other nodes (2 healthy, 1 suspect, 1 dead)",
        ),
    ],
)
def test_the_health_of_the_other_nodes_is_one_line(
    health: HealthCounts, line: str
) -> None:
    assert line in shown(health, [])


def test_the_latest_events_are_shown_with_their_time() -> None:
    events = [
        ClusterEvent(time_s=float(number), kind="split", text=f"event {number}")
        for number in range(7)
    ]
    text = shown(counts(1, 0, 0), events)
    assert [f"event {n}" in text for n in range(7)] == [False] * 2 + [True] * 5


def row(node: str, name: str, **changes: object) -> NodeRow:
    plain = snapshot(counts(0, 0, 0), []).nodes[0]
    return msgspec.structs.replace(plain, node=node, name=name, **changes)


def test_80_columns_show_whole_addresses_and_names_with_their_ids() -> None:
    """Three machines of a home, two of them with the name that the image gave them."""
    profile = msgspec.structs.replace(
        measure(), chip="Raspberry Pi 5 Model B Rev 1.0", accelerators=[]
    )
    long = "[2001:db8:85a3:8d3:1319:8a2e:370:7348]:54321"
    addresses = ["192.168.178.123:54321", "192.168.178.124:43210", long]
    names = ["raspberrypi", "raspberrypi", "living-room-desktop"]
    rows = [
        row(
            letter * 52,
            name,
            address=address,
            profile=profile,
            is_leader=letter == "b",
            jobs=["default"],
        )
        for letter, name, address in zip("bcd", names, addresses, strict=True)
    ]
    ids = [each.node for each in rows]
    seen = msgspec.structs.replace(
        snapshot(counts(2, 0, 0), []), nodes=rows, ring=ids, leader="b" * 52
    )
    out = io.StringIO()
    report = StatusReport("raspberrypi, process 1", seen)
    Console(file=out, width=80).print(_render([report], is_live=True))
    text = out.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(address in text for address in addresses[:2])
    joined = "".join("".join(line.split()) for line in text.splitlines())
    assert "…" not in text
    assert "leader raspberrypi (bbbb-bbbb)" in text
    assert "raspberrypi (cccc-cccc)" in text
    assert long[:24] in joined
