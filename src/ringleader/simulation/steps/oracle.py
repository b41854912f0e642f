"""Oracle: knows what every delivered value must be, and checks I1 to I13 as they occur.

I1   members of one view have the same chain at the same version
I2   a delivered result is the exact sum of the contributions of its attempt
I3   no member of a view is more than one step behind another
I4   nothing is delivered after a status
I5   in one lineage no two chains of the same length are extended
I6   a result contains every quantum of its step once
I7   after the faults: one view, progress (checked by ``seeded_run``)
I8   a member holds the result of its version until all others have delivered it
I9   a state that was copied is the one of its chain
I10  a published state is final in its lineage; a total restart resumes the newest
I11  no more than two results are stored
I12  all members of a view compute the same table of quanta
I13  an aborted attempt leaves the codec's residual as it was
"""

from __future__ import annotations

from collections.abc import Mapping

from ringleader.membership.member import Member, ViewId
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.plan import Gather, StepPlan
from ringleader.membership.steps.status import StepStatus
from ringleader.membership.steps.step_member import StepMember
from ringleader.simulation.steps.toy_model import NUM_QUANTA, Values, apply

ALL_QUANTA = frozenset(range(NUM_QUANTA))

Table = Mapping[Member, tuple[int, ...]]


class StepViolation(AssertionError):
    """An invariant of the step protocol does not hold."""


def check(condition: bool, invariant: str, text: str) -> None:
    """Raise StepViolation unless ``condition`` holds."""
    if not condition:
        raise StepViolation(f"{invariant}: {text}")


class Oracle:
    """Everything that ever happened in one simulated run."""

    def __init__(self) -> None:
        self.states: dict[bytes, Values] = {}
        """The state that belongs to a chain."""
        self.lineages: set[str] = set()
        self.num_delivered = 0
        self.num_forks = 0
        self.num_gathers = 0
        self.num_adopted = 0
        self.num_views = 0
        self._contributions: dict[
            Attempt, dict[Member, tuple[frozenset[int], Values]]
        ] = {}
        self._results: dict[Attempt, Values] = {}
        self._members: dict[ViewId, tuple[Member, ...]] = {}
        self._plans: dict[ViewId, StepPlan] = {}
        self._chain_in_view: dict[tuple[ViewId, int], bytes] = {}
        self._extended: dict[tuple[str, int], bytes] = {}
        self._published: dict[tuple[str, int], bytes] = {}
        self._tables: dict[tuple[ViewId, int], Table] = {}

    def decided(
        self,
        view_id: ViewId,
        members: tuple[Member, ...],
        statuses: Mapping[Member, StepStatus],
        plan: StepPlan,
    ) -> None:
        """Record the plan of a view when it is first computed."""
        self._members[view_id] = members
        self._plans[view_id] = plan
        self.num_views += 1
        if not plan.is_paused:
            self.lineages.add(plan.lineage)
        self.num_forks += plan.is_fork
        self.num_gathers += isinstance(plan.action, Gather)
        if not any(
            s.lineage for s in statuses.values()
        ):  # all of them have started now
            best = max(s.samples for s in statuses.values())
            check(plan.samples == best, "I10", f"{plan.samples} of {best} resumed")

    def entered(
        self, member: StepMember, state: Values, others: list[StepMember]
    ) -> None:
        """Check a member that continues its history in a view."""
        chain = member.chain
        known = self.states.setdefault(chain, state)
        check(known == state, "I9", f"{member.me} has another state than its chain")
        self._check_view(member, others)

    def _check_view(self, member: StepMember, others: list[StepMember]) -> None:
        view_id, version = member.view.id, member.version
        chain = self._chain_in_view.setdefault((view_id, version), member.chain)
        text = f"{member.me} has another history in view {view_id}"
        check(chain == member.chain, "I1", f"{text} at version {version}")
        for other in others:
            if other.view.id != view_id or not other.lineage:  # it gave up its state
                continue
            if abs(other.version - version) > 1:
                lag = f"{member.me} at {version}, {other.me} at {other.version}"
                raise StepViolation(f"I3: {lag} in view {view_id}")

    def tabulated(self, view_id: ViewId, version: int, table: Table) -> None:
        """Check the quanta that a member assigns to all."""
        known = self._tables.setdefault((view_id, version), table)
        check(known == table, "I12", f"two tables for step {version + 1} in {view_id}")

    def began(
        self, member: StepMember, attempt: Attempt, done: frozenset[int], sent: Values
    ) -> None:
        """Record the contribution of a member."""
        self._contributions.setdefault(attempt, {})[member.me] = (done, sent)

    def delivered(
        self,
        member: StepMember,
        result: Values,
        state: Values,
        others: list[StepMember],
    ) -> None:
        """Check a result that a member has just delivered, and its new state."""
        self.num_delivered += 1
        attempt = member.last
        assert attempt is not None
        expected = self._results.get(attempt)
        if expected is None:
            expected = self._results[attempt] = self._sum(attempt)
        who = f"{member.me}, {attempt}"
        check(result == expected, "I2", f"{who}: got {result}, not {expected}")
        before = self.states[member.chain_before]
        after = self.states.setdefault(member.chain, apply(before, expected))
        check(state == after, "I2", f"{who}: state {state}, not {after}")
        self._check_view(member, others)
        self._check_lineage(member)

    def _sum(self, attempt: Attempt) -> Values:
        given = self._contributions.get(attempt, {})
        members = self._members[attempt.view]
        missing = [str(m) for m in members if m not in given]
        check(not missing, "I2", f"{attempt} was delivered without {missing}")
        quanta = [q for m in members for q in given[m][0]]
        is_exact = len(quanta) == NUM_QUANTA and set(quanta) == ALL_QUANTA
        check(is_exact, "I6", f"{attempt} contains the quanta {sorted(quanta)}")
        sent = [given[m][1] for m in members]
        return tuple(map(sum, zip(*sent, strict=True)))

    def _check_lineage(self, member: StepMember) -> None:
        key = (member.lineage, member.version - 1)
        chain = self._extended.setdefault(key, member.chain_before)
        text = f"two histories of {member.lineage} continue at version {key[1]}"
        check(chain == member.chain_before, "I5", text)
        published = self._published.get(key, chain)
        check(published == chain, "I10", f"published version {key[1]} was given up")

    def published(self, lineage: str, version: int, chain: bytes) -> None:
        """Check a state that is published as final."""
        known = self._published.setdefault((lineage, version), chain)
        extended = self._extended.get((lineage, version), chain)
        text = f"version {version} of {lineage} was published"
        check(known == chain, "I10", f"{text} twice, with different histories")
        check(extended == chain, "I10", f"{text} and given up")

    def adopted(
        self, member: StepMember, state: Values, others: list[StepMember]
    ) -> None:
        """Check a state that was copied."""
        self.num_adopted += 1
        known = self.states.get(member.chain)
        check(known == state, "I9", f"{member.me} copied {state}, not {known}")
        self._check_view(member, others)
