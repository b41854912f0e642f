"""StepNode: one machine of the simulated run, with the product's StepMember in it.

The data side is the simplest that has the product's shape: a gradient buffer A, two
result buffers, a codec residual that is committed at delivery, a disk that survives.
"""

from __future__ import annotations

from typing import NamedTuple

from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.plan import Gather
from ringleader.membership.steps.step_member import StepMember
from ringleader.simulation.steps.oracle import Oracle, check
from ringleader.simulation.steps.rules import StepRules, assign_next
from ringleader.simulation.steps.toy_model import (
    NUM_BUCKETS,
    ZERO,
    Values,
    apply,
    gradient,
    quantize,
)


class Snapshot(NamedTuple):
    """A state and its place in history."""

    lineage: str
    version: int
    chain: bytes
    chain_before: bytes
    last: Attempt
    samples: int
    state: Values


class StepNode:
    """One life at a time; ``begin_life`` starts the next one, only the disk is kept."""

    def __init__(self, index: int, rules: StepRules, oracle: Oracle) -> None:
        self.index = index
        self.rules = rules
        self.oracle = oracle
        self.life = -1
        self.is_alive = False
        self.speed = 1.0
        self.disk: Snapshot | None = None
        self.peers: list[StepNode] = []

    def begin_life(self, me: Member, *, loads_disk: bool) -> None:
        """Start a process; it has the state of its disk, or one of its own."""
        self.life += 1
        self.is_alive = True
        self.me = me
        self.member = self.rules.member(me)
        self.view: View | None = None
        self.frozen_for: ViewId | None = None
        self.status_bytes = b""
        self.counter = 0
        self.proposals: dict[ViewId, dict[Member, bytes]] = {}
        self.state: Values = (0.0, 100.0 * self.index + self.life, 7.0 * self.index)
        self.done: set[int] = set()
        self.buffer_a = ZERO
        self.residual = self.clean_residual = ZERO
        self.pending: tuple[Attempt, Values] | None = None
        self.contributed: set[Attempt] = set()
        self.buffers: dict[int, tuple[Attempt, list[float | None]]] = {}
        self.received: dict[tuple[Attempt, int], dict[Member, float]] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.assigned_at: tuple[ViewId, int] | None = None
        self.is_asleep = False
        """True while the user's thread sleeps between holding and delivering."""
        self.served: ViewId | None = None
        self.has_first_part = False
        if loads_disk and self.disk is not None:
            disk = self.disk
            self.state = disk.state
            where = (disk.version, disk.chain, disk.chain_before, disk.last)
            self.member.restore(*where, disk.samples)

    def others(self) -> list[StepMember]:
        """Return the members that run on other machines."""
        return [n.member for n in self.peers if n.is_alive and n is not self]

    # -- view changes ------------------------------------------------------------------

    def enter(self, view: View) -> None:
        """Continue in a view whose plan was just installed."""
        self.view = view
        self.frozen_for = None
        self.has_first_part = False
        member = self.member
        plan = member.plan
        assert plan is not None
        if not member.is_ready:
            return
        if self.me in plan.void and self.rules.drops_void:
            self.drop_gradient()
        self.oracle.entered(member, self.state, self.others())

    def drop_gradient(self) -> None:
        """Forget the contribution to the next step."""
        self.done = set()
        self.buffer_a = ZERO

    # -- steps -------------------------------------------------------------------------

    def assign(self) -> None:
        """Assign the quanta of the next step, and compute this member's."""
        member, view = self.member, self.view
        assert view is not None
        plan = member.plan
        assert plan is not None
        if member.version == plan.version:
            table = self.rules.assign(view, plan)
            if not self.rules.knows_table:
                table = {**table, self.me: tuple({*table[self.me], *member.quanta})}
        else:
            table = assign_next(view, member.version)
        self.oracle.tabulated(view.id, member.version, table)
        member.assign(table[self.me])
        self.assigned_at = (view.id, member.version)
        new = [q for q in member.quanta if q not in self.done]
        self.done.update(new)
        parts = zip(self.buffer_a, gradient(self.state, new), strict=True)
        self.buffer_a = tuple(a + g for a, g in parts)

    def contribute(self) -> tuple[Attempt, Values] | None:
        """Begin the next attempt; return what this member sends."""
        member = self.member
        attempt = member.next_attempt
        if not member.begin(attempt, NUM_BUCKETS):
            return None
        self._open_buffer(attempt)
        check(self.residual == self.clean_residual, "I13", f"{self.me}, {attempt}")
        sent, left = quantize(self.buffer_a, self.residual)
        self.pending = (attempt, left)
        self.contributed.add(attempt)
        if not self.rules.aborts_codec:
            self.residual = left
        self.oracle.began(member, attempt, frozenset(self.done), sent)
        return attempt, sent

    def begin_gather(self) -> bool:
        """Begin the gather of the plan; return False if a freeze came first."""
        plan = self.member.plan
        assert plan is not None
        assert isinstance(plan.action, Gather)
        attempt = plan.action.attempt
        if not self.member.begin(attempt, NUM_BUCKETS):
            return False
        self._open_buffer(attempt)
        return True

    def _open_buffer(self, attempt: Attempt) -> None:
        """Take the buffer of an attempt: what was in it is overwritten from now on."""
        slot = attempt.version % self.rules.num_buffers
        self.buffers[slot] = (attempt, self.values_of(attempt))
        check(len(self.buffers) <= 2, "I11", f"{self.me}: {len(self.buffers)} results")
        member = self.member
        if member.result is not None and member.stable_version < member.version:
            values = self.values_of(member.result.attempt)
            check(None not in values, "I8", f"{self.me} lost {member.result.attempt}")

    def values_of(self, attempt: Attempt) -> list[float | None]:
        """Return the buckets that are stored of an attempt."""
        for stored, values in self.buffers.values():
            if stored == attempt:
                return values
            if not self.rules.names_attempts and stored.version == attempt.version:
                return values
        return [None] * NUM_BUCKETS

    def take_bucket(self, attempt: Attempt, bucket: int, value: float) -> bool:
        """Store a final bucket; return True if the attempt is complete now."""
        member = self.member
        if not member.bucket_done(attempt, bucket):
            return False
        self.values_of(attempt)[bucket] = value
        return member.partial is not None and member.partial.is_complete

    def deliver(self, view_id: ViewId, attempt: Attempt) -> None:
        """Deliver the attempt that was completed in a view, and apply it."""
        member = self.member
        values = self.values_of(attempt)
        num = values[0] or 0.0
        was_frozen = self.frozen_for is not None
        if not member.deliver(view_id, int(num)):
            return
        check(not was_frozen, "I4", f"{self.me} delivered {attempt} after its status")
        check(None not in values, "I2", f"{self.me} delivered {attempt} incomplete")
        result = tuple(v for v in values if v is not None)
        self.state = apply(self.state, result)
        self._commit_codec(attempt)
        self.drop_gradient()
        self.take_snapshot()
        self.oracle.delivered(member, result, self.state, self.others())

    def _commit_codec(self, attempt: Attempt) -> None:
        """Commit the residual if the result contains this member's part."""
        if self.pending is not None and self.pending[0] == attempt:
            self.clean_residual = self.pending[1]
        elif attempt in self.contributed:
            self.clean_residual = ZERO  # what it held is in the result
        self.residual = self.clean_residual
        self.pending = None
        self.contributed = set()

    # -- copies of the state -----------------------------------------------------------

    def take_snapshot(self) -> None:
        """Keep the state of this version until it is known to be final."""
        member = self.member
        if member.last is not None:
            before = self.snapshots.get(member.version - 1)
            self.snapshots = {} if before is None else {before.version: before}
            self.snapshots[member.version] = Snapshot(
                member.lineage,
                member.version,
                member.chain,
                member.chain_before,
                member.last,
                member.samples,
                self.state,
            )

    def publish(self) -> None:
        """Write the newest final state to the disk."""
        member = self.member
        version = (
            member.stable_version if self.rules.waits_for_stable else member.version
        )
        snapshot = self.snapshots.get(version)
        if snapshot is not None and snapshot.lineage == member.lineage:
            self.oracle.published(member.lineage, version, snapshot.chain)
            self.disk = snapshot

    def serve_state(self, view_id: ViewId) -> tuple[Values, int] | None:
        """Return the state for an adopter in a view, if this member has it."""
        member = self.member
        plan = member.plan
        if plan is None or member.plan_view.id != view_id or member.must_adopt:
            return None
        if member.version != plan.version and self.rules.waits_for_gather:
            return None
        return self.state, member.samples

    def take_state(
        self, view_id: ViewId, part: int, state: Values, samples: int
    ) -> None:
        """Take one of the two parts of a state; the second one completes it."""
        member = self.member
        if not member.must_adopt:
            return
        if part == 0 and not self.has_first_part and member.begin_adopt(view_id):
            self.has_first_part = True
            self.state = (state[0], -1.0, -1.0)
        elif part == 1 and self.has_first_part and member.adopt(view_id, samples):
            self.state = state
            self.drop_gradient()
            self.residual = self.clean_residual = ZERO
            self.pending = None
            self.contributed = set()
            self.snapshots = {}
            self.oracle.adopted(member, state, self.others())
