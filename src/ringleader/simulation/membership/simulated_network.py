"""The ground the nodes stand on: links, messages, and the agents that use them.

The agents of real nodes are played here: they dial each other, tell their machine when
links open and break, close links to the dead, and end when their key turns out to be a
copy.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from ringleader.membership.events import (
    Changed,
    Cloned,
    Down,
    Event,
    Forgotten,
    Freeze,
    Health,
    Heard,
    Install,
    Leave,
    Payload,
    Send,
    Split,
    Tick,
    Up,
)
from ringleader.membership.machine import Machine
from ringleader.membership.member import Member, ViewId
from ringleader.membership.messages import Heartbeat, Message
from ringleader.simulation.membership.invariants import Broken, Watch
from ringleader.simulation.membership.link_conditions import CALM, Weather
from ringleader.simulation.membership.simulated_node import Make, Node, node_id
from ringleader.simulation.membership.trace_text import name, names, tell, title
from ringleader.simulation.membership.virtual_clock import Clock

DIAL_S = 0.25
"""Between two rounds in which agents dial whom they have no link to."""

ROUNDING_S = 1e-6
"""Later than planned, so that no rounding wakes a node a hair before its time."""

_TICK = Tick()


class Fabric(Clock):
    """Nodes on a virtual clock, and the links between them."""

    def __init__(
        self,
        size: int,
        *,
        seed: int = 0,
        make: Make = Machine,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(trace)
        self.rng = Random(seed)
        self.weather: Weather = CALM
        self.closes_dead_links = True
        """Whether agents close the links of peers that are declared dead."""
        self.renew_within_s = 0.0
        """How long a frozen node takes to find a new payload; zero: it has none."""
        self.nodes = [Node(i, node_id(i)) for i in range(size)]
        self.blocked: set[tuple[int, int]] = set()
        """(from, to): what is sent this way vanishes."""
        self.watch = Watch()
        self.num_messages = 0
        self.on_message: Callable[[Member, Message], None] | None = None
        """Sees every message that is sent."""
        self._make = make
        self._home: dict[Member, Node] = {}
        self._arrival_s: dict[tuple[int, int], float] = {}
        self.after(DIAL_S, self._dial_all)

    def reach(self, a: Node, b: Node) -> bool:
        """Whether messages get through in both directions."""
        there = (a.index, b.index) not in self.blocked
        return there and (b.index, a.index) not in self.blocked

    def settle_in(self, node: Node, member: Member) -> None:
        """Give a node a new life."""
        node.begin(self._make(member))
        self._home[member] = node

    def renew(self, node: Node) -> None:
        """Give a node something new to hang on its next view."""
        node.num_payloads += 1
        node.payload = f"{node.member.incarnation} {node.num_payloads}".encode()
        node.renewed_for = node.frozen
        self.step(node, Payload(node.payload))

    def leave(self, node: Node) -> None:
        """End it gracefully."""
        if node.is_running:
            self.say(f"{name(node.member)} leaves")
            self.step(node, Leave())
            self.hang_up(node, node.member)
            node.end()

    def step(self, node: Node, event: Event) -> None:
        """Hand an event to a node and do what it wants done."""
        subject = node.subject
        if subject is None:
            return
        if node.is_paused:
            if type(event) is not Tick:
                node.inbox.append(event)
            return
        for action in subject.step(event, node.clock(self.now_s)):
            kind = type(action)
            if kind is Send:
                self._send(node, action.to, action.message)  # type: ignore[union-attr]
            else:
                _PERFORM[kind](self, node, action)
        wake_at_s = subject.wake_at_s
        if wake_at_s != node.planned_s and node.subject is subject:
            node.planned_s = wake_at_s
            if wake_at_s < inf:
                wait_s = max(0.0, node.when(wake_at_s) - self.now_s) + ROUNDING_S
                self.after(wait_s, self._wake, node, wake_at_s)

    def _wake(self, node: Node, planned_s: float) -> None:
        if node.planned_s == planned_s:
            node.planned_s = None
            self.step(node, _TICK)

    def _send(self, node: Node, to: Member, message: Message) -> None:
        if to not in node.links:
            return
        self.num_messages += 1
        if self.on_message is not None:
            self.on_message(node.member, message)
        if self.trace is not None and type(message) is not Heartbeat:
            self.say(f"    {name(node.member)} -> {name(to)}: {tell(message)}")
        home = self._home[to]
        way = (node.index, home.index)
        if way in self.blocked:
            return
        if home.subject is None or home.member != to:
            # Its host, if it runs, knows no such link and may say so.
            if home.has_power and self.rng.random() < 0.5 and self.reach(node, home):
                self.lose(node, to)
            return
        self._carry(way, home, Heard(node.member, message))

    def _carry(self, way: tuple[int, int], home: Node, event: Heard) -> None:
        random, weather = self.rng.random, self.weather
        if weather.loss and random() < weather.loss:
            return
        at_s = self.now_s + weather.delay_s * (0.5 + 1.5 * random())
        if weather.late and random() < weather.late:
            at_s += weather.late_s * random()
        if weather.is_ordered:
            at_s = max(at_s, self._arrival_s.get(way, 0.0))
            self._arrival_s[way] = at_s
        args = (home, home.subject, event)
        self.at(at_s, self._deliver, *args)
        if weather.double and random() < weather.double:
            self.after(weather.delay_s * 20 * random(), self._deliver, *args)

    def _deliver(self, node: Node, subject: object, event: Heard | Up | Down) -> None:
        if node.subject is subject and event.peer in node.links:
            self.step(node, event)

    def lose(self, node: Node, peer: Member) -> None:
        """One end of a link learns that it broke, after what was sent before."""
        wait_s = self.weather.delay_s * (1 + self.rng.random())
        if self.weather.is_ordered:
            last_s = self._arrival_s.get((self._home[peer].index, node.index), 0.0)
            wait_s = max(wait_s, last_s - self.now_s)
        self.after(wait_s, self._drop, node, node.subject, peer, False)

    def _drop(self, node: Node, subject: object, peer: Member, gone: bool) -> None:
        if node.subject is not subject or (peer not in node.links and not gone):
            return
        node.links.discard(peer)
        if self.trace is not None:
            what = "hears that it is gone:" if gone else "lost its link to"
            self.say(f"{name(node.member)} {what} {name(peer)}")
        self.step(node, Down(peer, gone))

    def hang_up(self, node: Node, me: Member) -> None:
        """A process ended: its host closes its links and refuses new ones."""
        for other in self.nodes:
            if other is node or other.subject is None or me not in other.links:
                continue
            if self.reach(node, other):
                self.lose(other, me)
                wait_s = self.rng.uniform(0.05, 0.5)
                self.after(wait_s, self._drop, other, other.subject, me, True)

    def _dial_all(self) -> None:
        self.after(DIAL_S, self._dial_all)
        running = [n for n in self.nodes if n.is_running]
        for i, a in enumerate(running):
            for b in running[:i]:
                if a.member in b.links and b.member in a.links:
                    continue
                if self.reach(a, b) and self.rng.random() < 0.6:
                    self._connect(a, b)

    def _connect(self, a: Node, b: Node) -> None:
        for node, peer in ((a, b), (b, a)):
            wait_s = self.weather.delay_s * 2 * self.rng.random()
            self.after(wait_s, self._open, node, node.subject, peer.member)

    def _open(self, node: Node, subject: object, peer: Member) -> None:
        if node.subject is subject:
            node.links.add(peer)
            self.step(node, Up(peer))

    def _on_freeze(self, node: Node, action: Freeze) -> None:
        self.say(f"{name(node.member)} freezes for {title(action.id)}")
        self.watch.freeze(node, action.id)
        if self.renew_within_s:
            wait_s = self.renew_within_s * self.rng.random()
            self.after(wait_s, self._renew_frozen, node, node.subject, action.id)

    def _renew_frozen(self, node: Node, subject: object, view_id: ViewId) -> None:
        """What a node does once its work has stopped: it says how far it came."""
        is_due = node.frozen == view_id and node.renewed_for != view_id
        if node.subject is subject and is_due:
            self.renew(node)

    def _on_install(self, node: Node, action: Install) -> None:
        if self.trace is not None:
            what = f"{title(action.view.id)}: {names(action.view.members)}"
            self.say(f"{name(node.member)} installs {what}")
        self.watch.install(node, action.view)

    def _on_changed(self, node: Node, action: Changed) -> None:
        if self.trace is not None:
            what = f"{name(action.peer)} is {action.health}: {action.why}"
            self.say(f"{name(node.member)} thinks {what}")
        if action.health is Health.DEAD and self.closes_dead_links:
            self._close(node, action.peer)

    def _on_forgotten(self, node: Node, action: Forgotten) -> None:
        self._close(node, action.peer)

    def _close(self, node: Node, peer: Member) -> None:
        """An agent closes a link by itself; the other end sees it if it can."""
        if peer not in node.links:
            return
        self.after(0.0, self._drop, node, node.subject, peer, False)
        home = self._home[peer]
        if home.subject is not None and home.member == peer and self.reach(node, home):
            self.lose(home, node.member)

    def _on_cloned(self, node: Node, action: Cloned) -> None:
        what = f"{name(action.refused)} is refused"
        self.say(f"{name(node.member)} sees a copied key: {what}")
        if self._home[action.kept] is self._home[action.refused]:
            raise Broken(f"{name(node.member)} takes a restart for a copy: {what}")
        if action.refused == node.member:
            self.after(0.0, self.leave, node)

    def _on_split(self, node: Node, action: Split) -> None:
        what = f"{name(action.leader)}, the leader of {title(action.id)}"
        self.say(f"{name(node.member)} meets {what}")


_PERFORM: dict[type, Callable[[Fabric, Node, Any], None]] = {
    Freeze: Fabric._on_freeze,
    Install: Fabric._on_install,
    Changed: Fabric._on_changed,
    Forgotten: Fabric._on_forgotten,
    Cloned: Fabric._on_cloned,
    Split: Fabric._on_split,
}
