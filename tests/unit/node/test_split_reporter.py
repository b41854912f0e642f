"""Only parts of a cluster that was whole before are called split."""

from __future__ import annotations

import asyncio

from ringleader.ids import NodeId
from ringleader.node.agent.event_log import EventLog
from ringleader.node.agent.split_reporter import SplitReporter
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.node_state import NodeState, SplitSeen
from ringleader.topology.node_profile import measure

A, B, C = (NodeId(letter * 52) for letter in "abc")
STATE = NodeState(
    name="x", host="x", addresses=["10.0.0.1"], port=4000, profile=measure()
)


def view(epoch: int, *nodes: NodeId) -> ViewState:
    return ViewState(f"{epoch}@{nodes[0]}/0", nodes, dict.fromkeys(nodes, STATE))


def kinds(*views: ViewState, noticed: SplitSeen | None = None) -> list[str]:
    """The events of B, a member of these views, which at last leads a part itself."""
    log = EventLog({}, prints=False)

    async def live() -> None:
        reporter = SplitReporter(log, lambda: None, lambda: None)
        for each in views:
            reporter.on_view_state(each)
        if noticed is not None:
            reporter.notice(noticed)

    asyncio.run(live())
    return [event.kind for event in log.events]


def test_machines_that_start_and_find_each_other_were_never_split() -> None:
    assert kinds(view(1, B, C), view(2, A, B, C)) == []
    assert kinds(view(1, B, C), noticed=SplitSeen(B, A, 1)) == []


def test_parts_that_were_one_cluster_before_were_split() -> None:
    whole = view(1, A, B, C)
    assert kinds(whole, view(2, B, C), view(3, A, B, C)) == ["split"]
    assert kinds(whole, view(2, B, C), noticed=SplitSeen(B, A, 2)) == ["split"]
