"""``EventLog``: cluster events of one agent, for ``status`` and on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ringleader.ids import NodeId, short, tell_apart
from ringleader.membership.events import GOODBYE, Health, HealthChanged, KeyCloned
from ringleader.membership.member import Member, View
from ringleader.node.protocol.node_state import SplitSeen
from ringleader.node.protocol.snapshot import ClusterEvent

MAX_EVENTS = 32
"""Events kept for ``status``: an evening of a home cluster."""

SAME_SPLIT_S = 30.0
"""Several nodes report a split, each in its own words; this close it is one event."""


class Kind(StrEnum):
    """Kinds of events, by names that programs may rely on."""

    FOUND = "found"
    LOST = "lost"
    LEFT = "left"
    VIEW = "view"
    SPLIT = "split"
    CLONE = "clone"
    FAILURE = "failure"
    COORDINATOR = "coordinator"


@dataclass(slots=True)
class EventLog:
    """Names of nodes and the latest events. Lives on the event loop of the agent."""

    names: dict[NodeId, str]
    prints: bool
    """Whether events are also printed on standard error."""
    clones: list[str] = field(default_factory=list)
    events: deque[ClusterEvent] = field(
        default_factory=lambda: deque(maxlen=MAX_EVENTS)
    )
    followers: list[Callable[[ClusterEvent], None]] = field(default_factory=list)
    """Called with each event."""
    view_followers: list[Callable[[View], None]] = field(default_factory=list)
    """Called with each view, also if its members are those of the last one."""
    _members: set[Member] = field(default_factory=set)
    _splits: dict[frozenset[NodeId], float] = field(default_factory=dict)
    """When a split between two leaders was last recorded."""
    _reports: set[SplitSeen] = field(default_factory=set)

    def title(self, node: NodeId) -> str:
        """Return the name of a node with enough of its id to tell it apart."""
        return f"{self.names.get(node, 'a node')} ({short(node)})"

    def connected(self, node: NodeId, name: str, address: str) -> None:
        """Record that a control link to a node is open."""
        is_new = node not in self.names
        self.names[node] = name
        if is_new:
            self._add(Kind.FOUND, f"found {self.title(node)} at {address}", node)

    def health_changed(self, change: HealthChanged) -> None:
        """Record a change of a peer's health; only its end is an event."""
        if change.health is not Health.DEAD:
            return
        node = change.peer.node
        if change.why == GOODBYE:
            self._add(Kind.LEFT, f"{self.title(node)} left", node)
        else:
            self._add(Kind.LOST, f"lost {self.title(node)}: {change.why}", node)

    def view_installed(self, view: View, names: Mapping[NodeId, str]) -> None:
        """Record a view; an event only if its members differ from the last one's."""
        self.names.update(names)
        for follow in self.view_followers:
            follow(view)
        if set(view.members) == self._members:
            return
        self._members = set(view.members)
        shown = tell_apart({m.node: self.names.get(m.node, "?") for m in view.members})
        listed, leader = ", ".join(shown.values()), shown.get(view.id.leader, "?")
        self._add(Kind.VIEW, f"members: {listed}; leader {leader}")

    def split_seen(self, split: SplitSeen) -> None:
        """Record a split that this node or another member noticed."""
        pair = frozenset((split.leader, split.other_leader))
        now_s = time.monotonic()
        if split in self._reports:
            return
        self._reports.add(split)
        if now_s - self._splits.get(pair, -SAME_SPLIT_S) < SAME_SPLIT_S:
            return
        self._splits[pair] = now_s
        text = (
            "the cluster was split: the parts led by "
            f"{self.title(split.leader)} and {self.title(split.other_leader)} "
            "found each other and merge"
        )
        self._add(Kind.SPLIT, text)

    def key_cloned(self, clone: KeyCloned) -> None:
        """Record that two machines use one node key."""
        text = (
            f"two machines use the key of node {short(clone.refused.node)}: was a home "
            "directory copied? On one of them run 'ringleader leave' and join again"
        )
        if text not in self.clones:
            self.clones.append(text)
            self._add(Kind.CLONE, text, clone.refused.node)

    def coordinator_changed(self, text: str) -> None:
        """Record that the coordinator is lost, or back."""
        self._add(Kind.COORDINATOR, text)

    def agent_failed(self, error: BaseException | None) -> None:
        """Record a bug in the agent; always printed."""
        self.prints = True
        self._add(Kind.FAILURE, f"bug in the agent, please report it: {error!r}")

    def _add(self, kind: Kind, text: str, node: str = "") -> None:
        event = ClusterEvent(time_s=time.time(), kind=kind, text=text, node=node)
        self.events.append(event)
        for follow in list(self.followers):
            follow(event)
        if self.prints:
            with contextlib.suppress(OSError):  # standard error is a closed pipe
                sys.stderr.write(f"ringleader: {text}\n")
                sys.stderr.flush()
