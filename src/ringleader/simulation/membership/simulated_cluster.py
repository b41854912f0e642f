"""A small world: nodes that live, talk and fail, as a script or a seed wants it."""

from __future__ import annotations

from collections.abc import Iterable

from ringleader.membership.events import Tick
from ringleader.membership.member import Member
from ringleader.simulation.membership.invariants import unrest
from ringleader.simulation.membership.simulated_network import Fabric
from ringleader.simulation.membership.simulated_node import Node, incarnation
from ringleader.simulation.membership.trace_text import name


class World(Fabric):
    """What can be done to nodes. ``run`` moves the clock."""

    # -- lives -------------------------------------------------------------------------

    def start(self, node: Node, started_ms: int | None = None) -> None:
        """Start the agent of a node; a new life if it had one."""
        if node.subject is not None:
            return
        if started_ms is None:
            started_ms = int(self.now_s * 1000)
        member = Member(started_ms, node.key, incarnation(node))
        self.settle_in(node, member)
        self.say(f"{name(member)} starts")
        self.renew(node)
        self.step(node, Tick())

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """End its process; ``silent``: its host loses power, and nobody is told."""
        if node.subject is None:
            return
        me = node.member
        self.say(f"{name(me)} {'loses power' if silent else 'is killed'}")
        if not silent:
            self.hang_up(node, me)
        node.end()
        node.has_power = not silent

    def pause(self, node: Node) -> None:
        """SIGSTOP: it does nothing, and what arrives waits in its sockets."""
        if node.is_running:
            self.say(f"{name(node.member)} is stopped")
            node.is_paused = True

    def resume(self, node: Node) -> None:
        """SIGCONT."""
        if node.subject is None or not node.is_paused:
            return
        self.say(f"{name(node.member)} goes on")
        node.is_paused = False
        inbox, node.inbox = node.inbox, []
        for event in inbox:
            self.step(node, event)
        self.step(node, Tick())

    def copy_key(self, node: Node) -> Node:
        """A second machine with the key of the first."""
        copy = Node(len(self.nodes), node.key, copy_of=1)
        self.nodes.append(copy)
        return copy

    # -- links -------------------------------------------------------------------------

    def block(self, a: Node, b: Node, *, one_way: bool = False) -> set[tuple[int, int]]:
        """Make what ``a`` sends to ``b`` vanish, and back unless ``one_way``."""
        ways = {(a.index, b.index)}
        if not one_way:
            ways.add((b.index, a.index))
        self.blocked |= ways
        return ways

    def split(self, *groups: Iterable[Node]) -> set[tuple[int, int]]:
        """A partition: only nodes of the same group reach each other."""
        place = {n.index: i for i, group in enumerate(groups) for n in group}
        ways = {
            (a.index, b.index)
            for a in self.nodes
            for b in self.nodes
            if place.get(a.index) != place.get(b.index)
        }
        self.blocked |= ways
        return ways

    def unblock(self, ways: set[tuple[int, int]]) -> None:
        """Undo a ``block`` or ``split``."""
        self.blocked -= ways

    def heal(self) -> None:
        """Let everybody reach everybody again."""
        self.blocked.clear()

    def cut(self, a: Node, b: Node) -> None:
        """Break the link of two nodes; each end notices, and they dial again."""
        for node, peer in ((a, b), (b, a)):
            if node.subject is not None and peer.subject is not None:
                self.lose(node, peer.member)

    def unrest(self) -> str | None:
        """Why the nodes that run are not in the views they should have."""
        running = [n for n in self.nodes if n.subject is not None]
        mutual = {
            frozenset((a.member, b.member))
            for i, a in enumerate(running)
            for b in running[:i]
            if self.reach(a, b)
        }
        return unrest(running, mutual)
