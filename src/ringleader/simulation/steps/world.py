"""StepWorld: machines, a network that an adversary schedules, and view changes.

Messages wait in one pool; any of them may be the next to arrive, so they are delayed
and reordered without limit. Anybody may propose any view at any time, so every way in
which a real membership layer can fail, stop half-way or suspect a healthy member
occurs. What holds here needs nothing from membership but unique, growing view ids.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ringleader.ids import Incarnation
from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.decide import Partition
from ringleader.membership.steps.plan import Gather, StepPlan
from ringleader.membership.steps.status import read_statuses
from ringleader.simulation.membership.simulated_node import node_id
from ringleader.simulation.membership.trace_text import name_of, names_of, view_name
from ringleader.simulation.steps.data_side import PureResults
from ringleader.simulation.steps.engine import StepEngine
from ringleader.simulation.steps.node import StepNode
from ringleader.simulation.steps.oracle import Oracle
from ringleader.simulation.steps.rules import StepRules

Envelope = tuple[StepNode, int, StepNode, int, str, tuple[Any, ...]]
"""Sender and its life, receiver and its life, kind, content."""


class StepWorld:
    """The state of one simulated run; ``seeded_run`` decides what happens next."""

    def __init__(
        self,
        size: int,
        rng: Random,
        rules: StepRules,
        partition: Partition,
        oracle: Oracle,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.rng = rng
        self.rules = rules
        self.partition = partition
        self.trace = trace
        self.oracle = oracle
        pure = PureResults("refill" if rng.random() < 0.75 else "shrink")
        self.nodes = [StepNode(i, rules, oracle, pure) for i in range(size)]
        for node in self.nodes:
            node.peers = self.nodes
            node.partition = partition
        self.engine = StepEngine(rng, rules, self.to_member, self.tell)
        self.pool: list[Envelope] = []
        self.blocked: set[tuple[int, int]] = set()
        """Directed pairs of machines whose messages are lost."""
        self.num_events = 0
        self.ended: dict[Member, ViewId] = {}
        """The last promise of every life that has ended."""
        self.num_idle = 0
        """Threads in a row that had to wait."""
        self._clock = 0
        self._plans: dict[ViewId, StepPlan] = {}

    @property
    def num_crashes(self) -> int:
        """Lives that have ended."""
        return len(self.ended)

    def tell(self, text: str) -> None:
        """Write a line to the trace."""
        if self.trace is not None:
            self.trace(f"{self.num_events:5d}  {text}")

    # -- lives -------------------------------------------------------------------------

    def living(self) -> list[StepNode]:
        """Return the machines whose process runs."""
        return [node for node in self.nodes if node.is_alive]

    def start(
        self, node: StepNode, *, loads_disk: bool = False, joins: bool = False
    ) -> None:
        """Start a process on a machine; one that ``joins`` a run has no state."""
        self._clock += 1
        life = Incarnation(f"{node.life + 1:04x}0{node.index:011x}")
        node.begin_life(
            Member(self._clock, node_id(node.index), life),
            loads_disk=loads_disk,
            joins=joins,
        )
        self.tell(f"{name_of(node.me)} starts at version {node.member.version}")

    def crash(self, node: StepNode) -> None:
        """End a process; everything but its disk is lost."""
        self.tell(f"{name_of(node.me)} dies at version {node.member.version}")
        node.is_alive = False
        self.ended[node.me] = node.member.newest_promise

    def attest(self, dead: StepNode, to: StepNode) -> None:
        """Give a machine the proof that a process has ended, and its last promise."""
        to.member.note_ended(dead.me, self.ended[dead.me])
        self.tell(f"{name_of(to.me)} knows that {name_of(dead.me)} has ended")

    # -- messages ----------------------------------------------------------------------

    def send(self, source: StepNode, to: StepNode, kind: str, *content: object) -> None:
        """Put a message into the pool."""
        self.pool.append((source, source.life, to, to.life, kind, content))

    def to_member(
        self, source: StepNode, to: Member, kind: str, *content: object
    ) -> None:
        """Send to the machine of a member, if that life still runs there."""
        for node in self.nodes:
            if node.is_alive and node.me == to:
                self.send(source, node, kind, *content)

    def next_message(self) -> None:
        """Let any message of the pool arrive, or get lost."""
        pool = self.pool
        index = int(self.rng.random() * len(pool))
        envelope = pool[index]
        pool[index] = pool[-1]
        pool.pop()
        source, _, to, life, kind, content = envelope
        if not to.is_alive or to.life != life:
            return
        if self.blocked and (source.index, to.index) in self.blocked:
            if self.rng.random() < 0.1:
                pool.append(envelope)
            return
        if not self._receive(source, to, kind, content):
            pool.append(envelope)  # not readable yet: it stays in the link

    def _receive(
        self, source: StepNode, to: StepNode, kind: str, content: tuple[Any, ...]
    ) -> bool:
        """Handle a message. Return False if it has to wait."""
        match kind:
            case "propose":
                self._promise(to, source, *content)
            case "status":
                self._collect(to, *content)
            case "commit":
                self._install(to, *content)
            case _:
                return self.engine.receive(to, kind, content)
        return True

    # -- view changes ------------------------------------------------------------------

    def propose(self, leader: StepNode, members: list[StepNode], skip: int = 1) -> None:
        """Propose a view; its members may never hear of it."""
        heard = max(n.member.newest_promise.counter for n in members)
        leader.counter = max(leader.counter, heard) + skip
        view_id = ViewId(leader.counter, leader.me.node, leader.me.incarnation)
        ring = [node.me for node in members]
        self.rng.shuffle(ring)
        leader.proposals = {view_id: {}}
        self.tell(
            f"{name_of(leader.me)} proposes {view_name(view_id)}: {names_of(ring)}"
        )
        for node in members:
            self.send(leader, node, "propose", view_id, tuple(ring))

    def _promise(
        self,
        node: StepNode,
        leader: StepNode,
        view_id: ViewId,
        ring: tuple[Member, ...],
    ) -> None:
        if node.frozen_for == view_id:
            self.send(node, leader, "status", node.me, view_id, ring, node.status_bytes)
        elif node.member.freeze(view_id, ring):
            node.frozen_for = view_id
            node.status_bytes = node.report()
            self.send(node, leader, "status", node.me, view_id, ring, node.status_bytes)
            self.tell(f"{name_of(node.me)} promises {view_name(view_id)}")

    def _collect(
        self,
        leader: StepNode,
        sender: Member,
        view_id: ViewId,
        ring: tuple[Member, ...],
        status: bytes,
    ) -> None:
        statuses = leader.proposals.get(view_id)
        if statuses is None:
            return
        statuses[sender] = status
        if len(statuses) < len(ring):
            return
        del leader.proposals[view_id]
        view = View(view_id, ring, tuple(statuses[m] for m in ring))
        for member in ring:
            self.to_member(leader, member, "commit", view)

    def _install(self, node: StepNode, view: View) -> None:
        if node.frozen_for != view.id:
            return
        plan = self._plan_of(view)
        node.member.install(view, plan)
        node.enter(view)
        self.tell(
            f"{name_of(node.me)} installs {view_name(view.id)}: {_describe(plan)}"
        )

    def _plan_of(self, view: View) -> StepPlan:
        """Return the plan of a view. It is a pure function: computed once for all."""
        plan = self._plans.get(view.id)
        if plan is None:
            statuses = read_statuses(view)
            plan = self.rules.decide(view, statuses, self.partition)
            self._plans[view.id] = plan
            self.oracle.decided(view, statuses, plan)
        return plan


def _describe(plan: StepPlan) -> str:
    if plan.is_paused:
        return f"paused: {plan.pause_reason}"
    action = "gather" if isinstance(plan.action, Gather) else "reduce"
    adopt = f", adopt: {names_of(sorted(plan.adopt))}" if plan.adopt else ""
    return f"{plan.lineage} at version {plan.version}, {action}{adopt}"
