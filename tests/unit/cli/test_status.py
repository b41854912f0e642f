"""``ringleader status`` shows health and events in words."""

from __future__ import annotations

import io

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
    Console(file=out, width=160).print(_render([report]))
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
