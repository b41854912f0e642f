"""SimulatedCluster: start, stop and disconnect simulated nodes, by script or seed."""

from __future__ import annotations

from collections.abc import Iterable

from ringleader.membership.events import Tick
from ringleader.membership.member import Member
from ringleader.simulation.membership.invariants import convergence_problem
from ringleader.simulation.membership.simulated_network import SimulatedNetwork
from ringleader.simulation.membership.simulated_node import SimulatedNode, incarnation
from ringleader.simulation.membership.trace_text import name_of


class SimulatedCluster(SimulatedNetwork):
    """A simulated cluster and the faults it can be given. ``run`` moves the clock."""

    # -- processes ---------------------------------------------------------------------

    def start(self, node: SimulatedNode, started_ms: int | None = None) -> None:
        """Start the agent of a node, as a new incarnation if it ran before."""
        if node.machine is not None:
            return
        if started_ms is None:
            started_ms = int(self.now_s * 1000)
        member = Member(started_ms, node.key, incarnation(node))
        self.attach(node, member)
        self.trace_line(f"{name_of(member)} starts")
        self.renew_payload(node)
        self.step(node, Tick())

    def kill(self, node: SimulatedNode, *, silent: bool = False) -> None:
        """Kill the process; ``silent``: the host loses power, so peers see no reset."""
        if node.machine is None:
            return
        me = node.member
        self.trace_line(f"{name_of(me)} {'loses power' if silent else 'is killed'}")
        if not silent:
            self.close_links(node, me)
        node.end()
        node.has_power = not silent

    def pause(self, node: SimulatedNode) -> None:
        """Stop the process (SIGSTOP); what arrives waits in its sockets."""
        if node.is_running:
            self.trace_line(f"{name_of(node.member)} is stopped")
            node.is_paused = True

    def resume(self, node: SimulatedNode) -> None:
        """Continue a paused process (SIGCONT)."""
        if node.machine is None or not node.is_paused:
            return
        self.trace_line(f"{name_of(node.member)} goes on")
        node.is_paused = False
        inbox, node.inbox = node.inbox, []
        for event in inbox:
            self.step(node, event)
        self.step(node, Tick())

    def copy_key(self, node: SimulatedNode) -> SimulatedNode:
        """Add a second host that holds a copy of the node's key."""
        copy = SimulatedNode(len(self.nodes), node.key, copy_of=1)
        self.nodes.append(copy)
        return copy

    # -- links -------------------------------------------------------------------------

    def block(
        self, a: SimulatedNode, b: SimulatedNode, *, one_way: bool = False
    ) -> set[tuple[int, int]]:
        """Drop messages from ``a`` to ``b``, and back unless ``one_way``."""
        ways = {(a.index, b.index)}
        if not one_way:
            ways.add((b.index, a.index))
        self.blocked |= ways
        return ways

    def split(self, *groups: Iterable[SimulatedNode]) -> set[tuple[int, int]]:
        """Partition the network: only nodes of the same group reach each other."""
        group_of = {n.index: i for i, group in enumerate(groups) for n in group}
        ways = {
            (a.index, b.index)
            for a in self.nodes
            for b in self.nodes
            if group_of.get(a.index) != group_of.get(b.index)
        }
        self.blocked |= ways
        return ways

    def unblock(self, ways: set[tuple[int, int]]) -> None:
        """Undo a ``block`` or ``split`` by the pairs it returned."""
        self.blocked -= ways

    def heal(self) -> None:
        """Let all nodes reach each other again."""
        self.blocked.clear()

    def cut(self, a: SimulatedNode, b: SimulatedNode) -> None:
        """Break the link of two nodes; both ends notice and dial again."""
        for node, peer in ((a, b), (b, a)):
            if node.machine is not None and peer.machine is not None:
                self.break_link(node, peer.member)

    def convergence_problem(self) -> str | None:
        """Explain why running nodes are not in the expected views; None if they are."""
        running = [n for n in self.nodes if n.machine is not None]
        mutual = {
            frozenset((a.member, b.member))
            for i, a in enumerate(running)
            for b in running[:i]
            if self.reach(a, b)
        }
        return convergence_problem(running, mutual)
