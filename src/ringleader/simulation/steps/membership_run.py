"""Runs one seed with the product's membership machine below the step protocol.

The adversary of ``seeded_run`` proposes views that no membership layer would propose.
Here the views are those of real elections on a virtual clock, under the faults of the
membership simulator; frames between members wait while a link is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import RefreshView
from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.plan import StepPlan
from ringleader.membership.steps.status import read_statuses
from ringleader.simulation.membership.fault_plan import schedule_faults
from ringleader.simulation.membership.simulated_cluster import SimulatedCluster
from ringleader.simulation.steps.data_side import PureResults
from ringleader.simulation.steps.engine import StepEngine
from ringleader.simulation.steps.member_machine import MemberMachine, without_prefix
from ringleader.simulation.steps.node import StepNode
from ringleader.simulation.steps.oracle import Oracle
from ringleader.simulation.steps.rules import PRODUCT, StepRules
from ringleader.simulation.steps.seeded_run import PROGRESS
from ringleader.simulation.steps.step_result import StepResult, failure_of, result_of

ACT_S = 0.03
"""Mean time between two actions of a user's thread."""

RETRY_S = 0.02
"""After this time a frame that could not be delivered is tried again."""

CALM_S = 25.0
"""After the last fault all members must make progress within this time."""


class TrainingCluster:
    """A cluster of the membership simulator whose nodes train."""

    def __init__(
        self,
        size: int,
        seed: int,
        rules: StepRules,
        oracle: Oracle,
        trace: Callable[[str], None] | None,
    ) -> None:
        self.rng = Random(seed)
        self.rules = rules
        self.oracle = oracle
        self.pure = PureResults("refill")
        self.config = MembershipConfig.for_training()
        self.cluster = SimulatedCluster(size, seed=seed, make=self._make, trace=trace)
        self.nodes: list[StepNode] = []
        self.num_lives = 0
        self._node_of: dict[Member, StepNode] = {}
        self._plans: dict[ViewId, StepPlan] = {}
        self._engine = StepEngine(self.rng, rules, self._send, self.cluster.trace_line)

    def _make(self, me: Member) -> MemberMachine:
        """Start a process; the incarnation tells on which machine."""
        index = int(me.incarnation[5:], 16)
        while len(self.nodes) <= index:
            node = StepNode(len(self.nodes), self.rules, self.oracle, self.pure)
            node.peers = self.nodes
            self.nodes.append(node)
        node = self.nodes[index]
        self._node_of[me] = node
        joins = node.life >= 0 and not node.begins_anew
        node.begin_life(me, loads_disk=self.rng.random() < 0.3, joins=joins)
        self.num_lives += 1
        self._act_later(node, node.life)
        return MemberMachine(me, self.config, node, self._install)

    def _install(self, node: StepNode, committed: View) -> None:
        view = without_prefix(committed)
        plan = self._plans.get(view.id)
        if plan is None:
            statuses = read_statuses(view)
            plan = self._plans[view.id] = self.rules.decide(view, statuses, "continue")
            self.oracle.decided(view, statuses, plan)
        node.member.install(view, plan)
        node.enter(view)
        if plan.lacks_state:
            self.cluster.after(0.0, self._find_state, node, node.life)

    def _find_state(self, node: StepNode, life: int) -> None:
        """Load the disk, or begin a new run: no member has a complete state."""
        host = self.cluster.nodes[node.index]
        if node.life != life or not host.is_running:
            return
        if node.load_disk():
            self.cluster.step(host, RefreshView())
            return
        node.begins_anew = True
        self.cluster.kill(host)
        self.cluster.start(host)

    def refresh(self) -> None:
        """Note which processes run."""
        for node, host in zip(self.nodes, self.cluster.nodes, strict=False):
            machine = host.machine
            node.is_alive = machine is not None

    def _is_running(self, node: StepNode, life: int) -> bool:
        self.refresh()
        return node.is_alive and node.life == life

    def _act_later(self, node: StepNode, life: int) -> None:
        wait_s = ACT_S * self.rng.uniform(0.2, 1.8)
        self.cluster.after(wait_s, self._act, node, life)

    def _act(self, node: StepNode, life: int) -> None:
        if not self._is_running(node, life):
            return
        if not self.cluster.nodes[node.index].is_paused:
            self._engine.act(node)
        self._act_later(node, life)

    # -- frames ------------------------------------------------------------------------

    def _send(self, source: StepNode, to: Member, kind: str, *content: object) -> None:
        target = self._node_of[to]
        if target.me == to:
            frame = (source.index, target, target.life, kind, content)
            wait_s = self.cluster.conditions.delay_s * self.rng.uniform(0.5, 2.0)
            self.cluster.after(wait_s, self._arrive, *frame)

    def _arrive(
        self,
        source: int,
        target: StepNode,
        life: int,
        kind: str,
        content: tuple[Any, ...],
    ) -> None:
        if not self._is_running(target, life):
            return
        is_cut = (source, target.index) in self.cluster.blocked
        if is_cut or self.cluster.nodes[target.index].is_paused:
            has_arrived = False
        else:
            has_arrived = self._engine.receive(target, kind, content)
        if not has_arrived:
            frame = (source, target, life, kind, content)
            self.cluster.after(RETRY_S, self._arrive, *frame)

    # -- the end -----------------------------------------------------------------------

    def problem(self) -> str | None:
        """Explain why the members have made no progress; None if they have."""
        self.refresh()
        for node in self.nodes:
            machine = self.cluster.nodes[node.index].machine
            if not node.is_alive or machine is None:
                continue
            member, plan = node.member, node.member.plan
            if machine.view is None or plan is None or not member.is_ready:
                return f"{node.me} is not ready"
            if member.version < plan.version + PROGRESS:
                return f"{node.me} is at {member.version}, the view at {plan.version}"
        return None


def simulate_with_membership(
    seed: int,
    *,
    size: int | None = None,
    rules: StepRules = PRODUCT,
    trace: Callable[[str], None] | None = None,
) -> StepResult:
    """Run one seed with ``size`` machines (None: three to eight, from the seed)."""
    rng = Random(seed)
    oracle = Oracle()
    training = TrainingCluster(size or rng.randrange(3, 9), seed, rules, oracle, trace)
    cluster = training.cluster
    over_s = rng.uniform(3.0, 10.0)
    schedule_faults(cluster, rng, over_s)
    failure = failure_of(partial(_run, training, over_s), cluster.trace_line)
    return result_of(
        seed,
        failure,
        oracle,
        size=len(cluster.nodes),
        num_events=cluster.num_messages,
        num_crashes=training.num_lives - len(cluster.nodes),
    )


def _run(training: TrainingCluster, over_s: float) -> None:
    cluster = training.cluster
    cluster.run(over_s)
    while (why := training.problem()) is not None:
        if cluster.now_s > over_s + CALM_S:
            text = f"{why}, {CALM_S:g} s after the last fault"
            training.oracle.check(False, "I7", text)
        cluster.run(cluster.now_s + 0.25)
