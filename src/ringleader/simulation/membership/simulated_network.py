"""SimulatedNetwork carries the messages of simulated nodes and acts as their agents.

Like the agents of real nodes it dials peers, reports opened and broken links to the
membership machine, closes links to dead peers, and stops a node whose key is a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from ringleader.membership.events import (
    Event,
    FreezeView,
    Health,
    HealthChanged,
    InstallView,
    KeyCloned,
    LeaveCluster,
    LinkDown,
    LinkEvent,
    LinkUp,
    MessageReceived,
    PeerForgotten,
    Send,
    SetPayload,
    Split,
    Tick,
)
from ringleader.membership.member import Member, ViewId
from ringleader.membership.messages import Heartbeat, Message
from ringleader.membership.state_machine import MembershipMachine
from ringleader.simulation.membership.invariants import (
    InvariantChecker,
    InvariantViolation,
)
from ringleader.simulation.membership.link_conditions import QUIET_LAN, LinkConditions
from ringleader.simulation.membership.simulated_node import (
    MachineFactory,
    SimulatedNode,
    node_id,
)
from ringleader.simulation.membership.trace_text import (
    describe,
    name_of,
    names_of,
    view_name,
)
from ringleader.simulation.membership.virtual_clock import VirtualClock

DIAL_S = 0.25
"""Interval at which agents dial the peers they have no link to."""

ROUNDING_S = 1e-6
"""Added to every wake-up, so that rounding never wakes a node before its time."""

_TICK = Tick()


class SimulatedNetwork(VirtualClock):
    """Nodes on a virtual clock, connected by links."""

    def __init__(
        self,
        size: int,
        *,
        seed: int = 0,
        make: MachineFactory = MembershipMachine,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(trace)
        self.rng = Random(seed)
        self.conditions: LinkConditions = QUIET_LAN
        self.closes_dead_links = True
        """Whether agents close their links to peers that are declared dead."""
        self.renew_within_s = 0.0
        """Maximum time in which a frozen node sets a new payload; 0: it never does."""
        self.nodes = [SimulatedNode(i, node_id(i)) for i in range(size)]
        self.blocked: set[tuple[int, int]] = set()
        """Pairs (sender, receiver) of node indices whose messages are dropped."""
        self.checker = InvariantChecker()
        self.num_messages = 0
        self.on_message: Callable[[Member, Message], None] | None = None
        """Called with every message that is sent."""
        self._make = make
        self._node_of: dict[Member, SimulatedNode] = {}
        self._arrival_s: dict[tuple[int, int], float] = {}
        self.after(DIAL_S, self._dial_all)

    def reach(self, a: SimulatedNode, b: SimulatedNode) -> bool:
        """Whether messages get through in both directions."""
        there = (a.index, b.index) not in self.blocked
        return there and (b.index, a.index) not in self.blocked

    def attach(self, node: SimulatedNode, member: Member) -> None:
        """Start a new incarnation of the node's agent."""
        node.begin(self._make(member))
        self._node_of[member] = node

    def renew_payload(self, node: SimulatedNode) -> None:
        """Set a new payload, which the node's next view must carry."""
        node.num_payloads += 1
        node.payload = f"{node.member.incarnation} {node.num_payloads}".encode()
        node.renewed_for = node.frozen
        self.step(node, SetPayload(node.payload, node.frozen))

    def leave(self, node: SimulatedNode) -> None:
        """Shut the node down gracefully."""
        if node.is_running:
            self.trace_line(f"{name_of(node.member)} leaves")
            self.step(node, LeaveCluster())
            self.close_links(node, node.member)
            node.end()

    def step(self, node: SimulatedNode, event: Event) -> None:
        """Pass an event to the node's machine and perform the actions it returns."""
        machine = node.machine
        if machine is None:
            return
        if node.is_paused:
            if type(event) is not Tick:
                node.inbox.append(event)
            return
        for action in machine.step(event, node.clock(self.now_s)):
            kind = type(action)
            if kind is Send:
                self._send(node, action.to, action.message)  # type: ignore[union-attr]
            else:
                _PERFORM[kind](self, node, action)
        wake_at_s = machine.wake_at_s
        if wake_at_s != node.planned_s and node.machine is machine:
            node.planned_s = wake_at_s
            if wake_at_s < inf:
                wait_s = max(0.0, node.when(wake_at_s) - self.now_s) + ROUNDING_S
                self.after(wait_s, self._wake, node, wake_at_s)

    def _wake(self, node: SimulatedNode, planned_s: float) -> None:
        if node.planned_s == planned_s:
            node.planned_s = None
            self.step(node, _TICK)

    def _send(self, node: SimulatedNode, to: Member, message: Message) -> None:
        if to not in node.links:
            return
        self.num_messages += 1
        if self.on_message is not None:
            self.on_message(node.member, message)
        if self.trace is not None and type(message) is not Heartbeat:
            way = f"{name_of(node.member)} -> {name_of(to)}"
            self.trace_line(f"    {way}: {describe(message)}")
        target = self._node_of[to]
        if (node.index, target.index) in self.blocked:
            return
        if target.machine is None or target.member != to:
            # The host, if it is up, may reject the unknown connection.
            may_reset = target.has_power and self.rng.random() < 0.5
            if may_reset and self.reach(node, target):
                self.break_link(node, to)
            return
        self._deliver_later(node, target, MessageReceived(node.member, message))

    def _deliver_later(
        self, source: SimulatedNode, target: SimulatedNode, event: MessageReceived
    ) -> None:
        way = (source.index, target.index)
        random, conditions = self.rng.random, self.conditions
        if conditions.loss and random() < conditions.loss:
            return
        at_s = self.now_s + conditions.delay_s * (0.5 + 1.5 * random())
        if conditions.late and random() < conditions.late:
            at_s += conditions.late_s * random()
        if conditions.is_ordered:
            at_s = max(at_s, self._arrival_s.get(way, 0.0))
            self._arrival_s[way] = at_s
        args = (target, target.machine, event)
        self.at(at_s, self._deliver, *args)
        if conditions.double and random() < conditions.double:
            self.after(conditions.delay_s * 20 * random(), self._deliver, *args)

    def _deliver(self, node: SimulatedNode, machine: object, event: LinkEvent) -> None:
        if node.machine is machine and event.peer in node.links:
            self.step(node, event)

    def break_link(self, node: SimulatedNode, peer: Member) -> None:
        """Report a broken link to one end, after the messages sent before the break."""
        wait_s = self.conditions.delay_s * (1 + self.rng.random())
        if self.conditions.is_ordered:
            last_s = self._arrival_s.get((self._node_of[peer].index, node.index), 0.0)
            wait_s = max(wait_s, last_s - self.now_s)
        self.after(wait_s, self._drop, node, node.machine, peer, False)

    def _drop(
        self, node: SimulatedNode, machine: object, peer: Member, gone: bool
    ) -> None:
        if node.machine is not machine or (peer not in node.links and not gone):
            return
        node.links.discard(peer)
        if self.trace is not None:
            what = "hears that it is gone:" if gone else "lost its link to"
            self.trace_line(f"{name_of(node.member)} {what} {name_of(peer)}")
        self.step(node, LinkDown(peer, gone))

    def close_links(self, node: SimulatedNode, me: Member) -> None:
        """Close the links of an ended process; its host refuses new ones."""
        for other in self.nodes:
            if other is node or other.machine is None or me not in other.links:
                continue
            if self.reach(node, other):
                self.break_link(other, me)
                wait_s = self.rng.uniform(0.05, 0.5)
                self.after(wait_s, self._drop, other, other.machine, me, True)

    def _dial_all(self) -> None:
        self.after(DIAL_S, self._dial_all)
        running = [n for n in self.nodes if n.is_running]
        for i, a in enumerate(running):
            for b in running[:i]:
                if a.member in b.links and b.member in a.links:
                    continue
                if self.reach(a, b) and self.rng.random() < 0.6:
                    self._connect(a, b)

    def _connect(self, a: SimulatedNode, b: SimulatedNode) -> None:
        for node, peer in ((a, b), (b, a)):
            wait_s = self.conditions.delay_s * 2 * self.rng.random()
            self.after(wait_s, self._open, node, node.machine, peer.member)

    def _open(self, node: SimulatedNode, machine: object, peer: Member) -> None:
        if node.machine is machine:
            node.links.add(peer)
            self.step(node, LinkUp(peer))

    def _on_freeze(self, node: SimulatedNode, action: FreezeView) -> None:
        self.trace_line(f"{name_of(node.member)} freezes for {view_name(action.id)}")
        self.checker.freeze(node, action.id)
        if self.renew_within_s:
            wait_s = self.renew_within_s * self.rng.random()
            self.after(wait_s, self._renew_frozen, node, node.machine, action.id)

    def _renew_frozen(
        self, node: SimulatedNode, machine: object, view_id: ViewId
    ) -> None:
        """Set the payload of a frozen node, as a job does once its work has stopped."""
        is_due = node.frozen == view_id and node.renewed_for != view_id
        if node.machine is machine and is_due:
            self.renew_payload(node)

    def _on_install(self, node: SimulatedNode, action: InstallView) -> None:
        if self.trace is not None:
            what = f"{view_name(action.view.id)}: {names_of(action.view.members)}"
            self.trace_line(f"{name_of(node.member)} installs {what}")
        self.checker.install(node, action.view)

    def _on_changed(self, node: SimulatedNode, action: HealthChanged) -> None:
        if self.trace is not None:
            what = f"{name_of(action.peer)} is {action.health}: {action.why}"
            self.trace_line(f"{name_of(node.member)} thinks {what}")
        if action.health is Health.DEAD and self.closes_dead_links:
            self._close(node, action.peer)

    def _on_forgotten(self, node: SimulatedNode, action: PeerForgotten) -> None:
        self._close(node, action.peer)

    def _close(self, node: SimulatedNode, peer: Member) -> None:
        """Close a link from one end; the other end learns of it if it is reachable."""
        if peer not in node.links:
            return
        self.after(0.0, self._drop, node, node.machine, peer, False)
        target = self._node_of[peer]
        is_same = target.machine is not None and target.member == peer
        if is_same and self.reach(node, target):
            self.break_link(target, node.member)

    def _on_cloned(self, node: SimulatedNode, action: KeyCloned) -> None:
        what = f"{name_of(action.refused)} is refused"
        self.trace_line(f"{name_of(node.member)} sees a copied key: {what}")
        if self._node_of[action.kept] is self._node_of[action.refused]:
            who = name_of(node.member)
            raise InvariantViolation(f"{who} mistakes a restart for a copy: {what}")
        if action.refused == node.member:
            self.after(0.0, self.leave, node)

    def _on_split(self, node: SimulatedNode, action: Split) -> None:
        what = f"{name_of(action.leader)}, the leader of {view_name(action.id)}"
        self.trace_line(f"{name_of(node.member)} meets {what}")


_PERFORM: dict[type, Callable[[SimulatedNetwork, SimulatedNode, Any], None]] = {
    FreezeView: SimulatedNetwork._on_freeze,
    InstallView: SimulatedNetwork._on_install,
    HealthChanged: SimulatedNetwork._on_changed,
    PeerForgotten: SimulatedNetwork._on_forgotten,
    KeyCloned: SimulatedNetwork._on_cloned,
    Split: SimulatedNetwork._on_split,
}
