"""Oracle: knows what every delivered value must be, and checks I1 to I14 as they occur.

I1   members of one view have the same chain at the same version
I2   a delivered result is the exact sum of the contributions of its attempt
I3   no member of a view is more than one step behind another
I4   nothing is delivered after a status
I5   in one lineage no two chains of the same length are extended
I6   a history contains every sample of an epoch once; what is missing is in debt
I7   after the faults: one view, progress (checked by ``seeded_run``)
I8   a member holds the result of its version until all others have delivered it
I9   a state that was copied is the one of its chain
I10  a published state is final in its lineage; a total restart resumes the newest
I11  no more than two results are stored
I12  all members of a view compute the same table of quanta
I13  an aborted attempt leaves the codec's residual as it was
I14  a member that had a complete state has one, and has the state of its chain
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.plan import Gather, StepPlan
from ringleader.membership.steps.status import StepStatus
from ringleader.membership.steps.step_member import StepMember
from ringleader.simulation.steps.toy_model import SPEC, Values, apply
from ringleader.training.data.assignment import StepTable
from ringleader.training.data.data_state import Quantum
from ringleader.training.data.intervals import Interval
from ringleader.training.data.progress import Progress

State = tuple[Values, Progress]
"""The model, and what was delivered of the data."""

Covered = tuple[int, frozenset[int]]
"""An epoch, and the positions of it that were delivered."""

INVARIANTS = tuple(f"I{number}" for number in range(1, 15))


class StepViolation(AssertionError):
    """An invariant of the step protocol does not hold."""


class Oracle:
    """Everything that ever happened in one simulated run.

    It checks the invariants ``watched``; violations of the others go unnoticed.
    """

    def __init__(self, watched: Collection[str] = INVARIANTS) -> None:
        self.states: dict[bytes, State] = {}
        """The state that belongs to a chain."""
        self.lineages: set[str] = set()
        self.num_delivered = 0
        self.num_forks = 0
        self.num_gathers = 0
        self.num_adopted = 0
        self.num_views = 0
        self._watched = frozenset(watched)
        self._contributions: dict[
            Attempt, dict[Member, tuple[tuple[Quantum, ...], Values]]
        ] = {}
        self._results: dict[Attempt, Values] = {}
        self._covered: dict[bytes, Covered] = {}
        self._checked: set[bytes] = set()
        self._members: dict[ViewId, tuple[Member, ...]] = {}
        self._chain_in_view: dict[tuple[ViewId, int], bytes] = {}
        self._extended: dict[tuple[str, int], bytes] = {}
        self._published: dict[tuple[str, int], bytes] = {}
        self._tables: dict[tuple[ViewId, int], StepTable] = {}
        self._complete: set[Member] = set()

    def check(self, condition: bool, invariant: str, text: str) -> None:
        """Raise StepViolation unless ``condition`` holds."""
        if not condition and invariant in self._watched:
            raise StepViolation(f"{invariant}: {text}")

    def decided(
        self,
        view: View,
        statuses: Mapping[Member, StepStatus],
        plan: StepPlan,
    ) -> None:
        """Record the plan of a view when it is first computed."""
        self._members[view.id] = view.members
        self.num_views += 1
        if not plan.is_paused:
            self.lineages.add(plan.lineage)
        self.num_forks += plan.is_fork
        self.num_gathers += isinstance(plan.action, Gather)
        if not any(s.lineage for s in statuses.values()):  # all have started now
            best = max(s.samples for s in statuses.values())
            text = f"{plan.samples} of {best} resumed"
            self.check(plan.samples == best, "I10", text)

    def entered(
        self, member: StepMember, state: State, others: list[StepMember]
    ) -> None:
        """Check a member that continues its history in a view."""
        known = self.states.setdefault(member.chain, state)
        text = f"{member.me} has another state than its chain"
        self.check(known == state, "I9", text)
        self._check_view(member, others)

    def _check_view(self, member: StepMember, others: list[StepMember]) -> None:
        view_id, version = member.view.id, member.version
        chain = self._chain_in_view.setdefault((view_id, version), member.chain)
        text = f"{member.me} has another history in view {view_id}"
        self.check(chain == member.chain, "I1", f"{text} at version {version}")
        for other in others:
            if other.view.id != view_id or not other.lineage:  # it gave up its state
                continue
            if abs(other.version - version) > 1:
                lag = f"{member.me} at {version}, {other.me} at {other.version}"
                self.check(False, "I3", f"{lag} in view {view_id}")

    def tabulated(self, view: View, version: int, table: StepTable) -> None:
        """Check the quanta that a member assigns to all."""
        known = self._tables.setdefault((view.id, version), table)
        text = f"two tables for step {version + 1} in {view.id}"
        self.check(known == table, "I12", text)

    def began(
        self,
        member: StepMember,
        attempt: Attempt,
        done: tuple[Quantum, ...],
        sent: Values,
    ) -> None:
        """Record the contribution of a member."""
        self._contributions.setdefault(attempt, {})[member.me] = (done, sent)

    def delivered(self, member: StepMember, result: Values, progress: Progress) -> None:
        """Check a result that a member has just delivered, at its old position."""
        self.num_delivered += 1
        attempt = member.last
        assert attempt is not None
        expected = self._results.get(attempt)
        if expected is None:
            expected = self._results[attempt] = self._sum(attempt)
        if member.chain not in self._covered:
            self._cover(member, attempt, progress)
        text = f"{member.me}, {attempt}: got {result}, not {expected}"
        self.check(result == expected, "I2", text)

    def applied(
        self, member: StepMember, state: State, others: list[StepMember]
    ) -> None:
        """Check the state after a delivered result."""
        attempt = member.last
        assert attempt is not None
        who = f"{member.me}, {attempt}"
        before = self.states.get(member.chain_before, state)
        model = apply(before[0], self._results[attempt])
        known = self.states.setdefault(member.chain, (model, state[1]))
        self.check(state[0] == model, "I2", f"{who}: model {state[0]}, not {model}")
        self.check(state[1] == known[1], "I6", f"{who}: another position in the data")
        if member.chain not in self._checked:
            self._checked.add(member.chain)
            self._check_ledger(member.chain, state[1])
        self._check_view(member, others)
        self._check_lineage(member)

    def _sum(self, attempt: Attempt) -> Values:
        """Return the sum of all contributions; those without work may be missing."""
        given = self._contributions.get(attempt, {})
        members = self._members[attempt.view]
        table = self._tables.get((attempt.view, attempt.version - 1))
        workers = [m for m in members if table is None or table.quanta[m.node]]
        missing = [str(m) for m in workers if m not in given]
        self.check(not missing, "I2", f"{attempt} was delivered without {missing}")
        sent = [given[m][1] for m in members if m in given]
        return sum(s[0] for s in sent), sum(s[1] for s in sent)

    # -- data --------------------------------------------------------------------------

    def _cover(self, member: StepMember, attempt: Attempt, progress: Progress) -> None:
        """Add the samples of a result to those of its history."""
        epoch, covered = self._covered.get(member.chain_before, (0, frozenset[int]()))
        work = self._contributions.get(attempt, {}).values()
        quanta = [quantum for done, _ in work for quantum in done]
        positions = [p for q in quanta for a, b in q.intervals for p in range(a, b)]
        if progress.state.epoch != epoch:
            is_over = len(covered) == SPEC.num_samples
            text = f"{attempt} begins epoch {epoch + 1} without all of {epoch}"
            self.check(is_over and progress.state.epoch == epoch + 1, "I6", text)
            epoch, covered = progress.state.epoch, frozenset()
        is_once = len(set(positions)) == len(positions)
        is_new = covered.isdisjoint(positions) and {q.epoch for q in quanta} <= {epoch}
        text = f"{attempt} contains the samples {sorted(positions)} after {covered}"
        self.check(bool(positions) and is_once and is_new, "I6", text)
        self._covered[member.chain] = (epoch, covered.union(positions))

    def _check_ledger(self, chain: bytes, progress: Progress) -> None:
        """Check that the ledger is true, and that the debt is what it lacks."""
        epoch, covered = self._covered[chain]
        state, ledger = progress.state, progress.ledger
        is_over = state.epoch == epoch + 1
        taken = SPEC.num_samples if is_over else state.cursor
        owed = set(range(taken)) - covered
        is_true = _positions(ledger.covered) == covered and ledger.epoch == epoch
        text = f"the ledger has {ledger.covered} of epoch {ledger.epoch}"
        self.check(is_true, "I6", f"{text}, not {sorted(covered)} of {epoch}")
        text = f"position {state} after the samples {sorted(covered)}"
        is_known = state.epoch in (epoch, epoch + 1) and covered <= set(range(taken))
        self.check(is_known and _positions(state.debt) == owed, "I6", text)

    # -- histories ---------------------------------------------------------------------

    def _check_lineage(self, member: StepMember) -> None:
        key = (member.lineage, member.version - 1)
        chain = self._extended.setdefault(key, member.chain_before)
        text = f"two histories of {member.lineage} continue at version {key[1]}"
        self.check(chain == member.chain_before, "I5", text)
        published = self._published.get(key, chain)
        text = f"published version {key[1]} was given up"
        self.check(published == chain, "I10", text)

    def published(self, lineage: str, version: int, chain: bytes) -> None:
        """Check a state that is published as final."""
        known = self._published.setdefault((lineage, version), chain)
        extended = self._extended.get((lineage, version), chain)
        text = f"version {version} of {lineage} was published"
        self.check(known == chain, "I10", f"{text} twice, with different histories")
        self.check(extended == chain, "I10", f"{text} and given up")

    def check_held(self, text: str, attempt: Attempt, stored: Values) -> None:
        """Check that a result that others may lack is still there."""
        known = self._results.get(attempt, stored)
        self.check(known == stored, "I8", text)

    def kept(self, member: StepMember, state: State) -> None:
        """Check that a member still has a complete state, if it ever had one."""
        if member.is_torn:
            text = f"{member.me} gave up its state before it had another one"
            self.check(member.me not in self._complete, "I14", text)
            return
        self._complete.add(member.me)
        known = self.states.get(member.chain, state)
        text = f"{member.me} has {state[0]}, not the state {known[0]} of its chain"
        self.check(known == state, "I14", text)

    def adopted(
        self, member: StepMember, state: State, others: list[StepMember]
    ) -> None:
        """Check a state that was copied."""
        self.num_adopted += 1
        known = self.states.get(member.chain)
        text = f"{member.me} copied {state[0]}, not {known and known[0]}"
        self.check(known == state, "I9", text)
        self._check_view(member, others)


def _positions(intervals: Collection[Interval]) -> set[int]:
    return {p for begin, end in intervals for p in range(begin, end)}
