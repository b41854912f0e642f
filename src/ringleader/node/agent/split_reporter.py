"""``SplitReporter``: tells all members that the cluster was split and merges again.

The leader of a part notices the leader of another part only while both have members.
Parts may also merge node by node, so a node whose new leader was not in its previous
view reports a split as well. The report travels in the node state for half a minute,
in which all nodes of both parts should have come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ringleader.ids import NodeId
from ringleader.node.agent.event_log import EventLog
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.node_state import SplitSeen

REPORT_S = 30.0


@dataclass(slots=True)
class SplitReporter:
    """The split this node reports. Lives on the event loop of the agent."""

    events: EventLog
    publish: Callable[[], None]
    """Publishes the changed node state in a new view."""
    set_payload: Callable[[], None]
    """Sets the changed node state as payload of the next view; asks for none."""
    current: SplitSeen | None = None
    """For the node state."""
    _previous: ViewState | None = None
    _met: set[NodeId] = field(default_factory=set)
    """Nodes that were in a view of this node."""

    def on_view_state(self, view_state: ViewState) -> None:
        """Record the splits that members report, and notice one by ourselves."""
        split = view_state.split_from(self._previous)
        self._previous = view_state
        for state in view_state.states.values():
            if state.split is not None:
                self.events.split_seen(state.split)
        if split is not None:
            self.notice(split)
        self._met.update(view_state.states)

    def notice(self, split: SplitSeen) -> None:
        """Record a split that this node has noticed, and report it for a while.

        Machines that find each other for the first time were never split.
        """
        if not {split.leader, split.other_leader} <= self._met:
            return
        self.current = split
        self.events.split_seen(split)
        self.publish()
        asyncio.get_running_loop().call_later(REPORT_S, self._forget, split)

    def _forget(self, split: SplitSeen) -> None:
        if self.current == split:
            self.current = None
            self.set_payload()
