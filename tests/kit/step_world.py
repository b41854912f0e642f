"""StepWorld: members of the step protocol that change views by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.decide import Partition, decide
from ringleader.membership.steps.plan import Gather, StepPlan
from ringleader.membership.steps.status import encode_status, read_statuses
from ringleader.membership.steps.step_member import StepMember

NUM_BUCKETS = 3
SAMPLES = 100


def member(name: str, life: int = 0) -> Member:
    return Member(
        life * 1000 + ord(name[0]),
        NodeId(name.ljust(52, "a")),
        Incarnation(f"{life:016x}"),
    )


class StepWorld:
    """Members by name; views are formed by naming those that take part."""

    def __init__(self, names: str, partition: Partition = "continue") -> None:
        self.at = {name: StepMember(member(name), partition) for name in names}
        self.partition = partition
        self.counter = 0

    def view_id(self, leader: str) -> ViewId:
        self.counter += 1
        who = self.at[leader].me
        return ViewId(self.counter, who.node, who.incarnation)

    def propose(self, names: str, heard_by: str | None = None) -> View:
        """Freeze members for a view led by the first one; return it as committed."""
        view_id = self.view_id(names[0])
        ring = tuple(self.at[n].me for n in names)
        for name in names if heard_by is None else heard_by:
            assert self.at[name].freeze(view_id, ring)
        if heard_by is not None:
            return View(view_id, ring, ())
        payloads = tuple(encode_status(self.at[n].status()) for n in names)
        return View(view_id, ring, payloads)

    def plan(self, view: View) -> StepPlan:
        return decide(view, read_statuses(view), partition=self.partition)

    def install(self, view: View, names: Iterable[str]) -> StepPlan:
        plan = self.plan(view)
        for name in names:
            self.at[name].install(view, plan)
        return plan

    def change(self, names: str) -> StepPlan:
        """Form a view of these members and install it at all of them."""
        return self.install(self.propose(names), names)

    def carry_out(self, names: str) -> None:
        """Gather and adopt as the plan says."""
        for name in names:
            at = self.at[name]
            assert at.plan is not None
            action = at.plan.action
            if at.must_adopt:
                assert at.begin_adopt(at.plan_view.id)
                assert at.adopt(at.plan_view.id, at.plan.version * SAMPLES)
            elif isinstance(action, Gather) and at.version < at.plan.version:
                assert at.begin(action.attempt, NUM_BUCKETS)
                self.fill(name)
                assert at.deliver(at.plan_view.id, SAMPLES)

    def fill(self, name: str, buckets: Iterable[int] = range(NUM_BUCKETS)) -> None:
        at = self.at[name]
        assert at.partial is not None
        for bucket in buckets:
            assert at.bucket_done(at.partial.attempt, bucket)

    def deliver(self, name: str) -> None:
        at = self.at[name]
        assert at.deliver(at.plan_view.id, SAMPLES)

    def begin(self, names: str) -> None:
        for name in names:
            assert self.at[name].begin(self.at[name].next_attempt, NUM_BUCKETS)

    def step(self, names: str) -> None:
        """Reduce and deliver one step at all of them."""
        self.begin(names)
        for name in names:
            self.fill(name)
            self.deliver(name)

    def start(self, names: str, num_steps: int = 1) -> None:
        """Form the first view and deliver some steps."""
        self.change(names)
        self.carry_out(names)
        for _ in range(num_steps):
            self.step(names)

    def chains(self, names: str) -> Mapping[str, bytes]:
        return {name: self.at[name].chain for name in names}
