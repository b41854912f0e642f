"""StepNode: one machine of the simulated run, with the product's StepMember in it."""

from __future__ import annotations

from typing import Any, NamedTuple

from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.decide import Partition
from ringleader.membership.steps.plan import Gather
from ringleader.membership.steps.status import encode_status
from ringleader.membership.steps.step_member import StepMember
from ringleader.simulation.steps.data_side import Content, DataSide, Entry, PureResults
from ringleader.simulation.steps.oracle import Oracle, State
from ringleader.simulation.steps.rules import StepRules
from ringleader.simulation.steps.toy_model import NUM_BUCKETS, Values, apply
from ringleader.training.data.balance import Flag
from ringleader.training.data.progress import Progress


class Snapshot(NamedTuple):
    """A state and its place in history."""

    lineage: str
    version: int
    chain: bytes
    chain_before: bytes
    last: Attempt
    samples: int
    model: Values
    progress: Progress


class Disk(NamedTuple):
    """A published state, as it is written."""

    snapshot: Snapshot
    data: dict[str, Any]


class StepNode:
    """One life at a time; ``begin_life`` starts the next one, only the disk is kept."""

    def __init__(
        self, index: int, rules: StepRules, oracle: Oracle, pure: PureResults
    ) -> None:
        self.index = index
        self.rules = rules
        self.oracle = oracle
        self.pure = pure
        self.partition: Partition = "continue"
        self.life = -1
        self.is_alive = False
        self.begins_anew = False
        """True if the next life begins a run, as nobody has a state of the last one."""
        self.speed = 1.0
        self.quantum_s = 0.1
        self.flags = Flag(0)
        self.disk: Disk | None = None
        self.peers: list[StepNode] = []

    def begin_life(self, me: Member, *, loads_disk: bool, joins: bool) -> None:
        """Start a process; it has the state of its disk, or one of its own.

        One that joins a run has none, and has to get it.
        """
        self.life += 1
        self.begins_anew = False
        self.is_alive = True
        self.me = me
        self.member = self.rules.member(me, self.partition, has_state=not joins)
        self.view: View | None = None
        self.frozen_for: ViewId | None = None
        self.status_bytes = b""
        self.counter = 0
        self.proposals: dict[ViewId, dict[Member, bytes]] = {}
        model = (100.0 * self.index + self.life, 7.0 * self.index)
        self.data = DataSide(self.rules, self.pure, model)
        self.received: dict[tuple[Attempt, int], dict[Member, Content]] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.assigned_at: tuple[ViewId, int] | None = None
        self.is_asleep = False
        """True while the user's thread sleeps between holding and delivering."""
        self.served: ViewId | None = None
        self.has_first_part = False
        if loads_disk:
            self.load_disk()

    def load_disk(self) -> bool:
        """Load the published state; False if there is none, or a view was promised."""
        if self.disk is None or self.member.is_frozen:
            return False
        disk, data = self.disk
        self.data.adopt(disk.model, data)
        where = (disk.version, disk.chain, disk.chain_before, disk.last)
        self.member.restore(*where, disk.samples)
        self._share_progress()
        return True

    @property
    def state(self) -> State:
        """The state that all members of a view must share."""
        return self.data.model, self.data.order.progress

    def _share_progress(self) -> None:
        """Use the object that others have if it is equal: results are shared then."""
        known = self.oracle.states.get(self.member.chain)
        if known is not None and known[1] == self.data.order.progress:
            self.data.order.progress = known[1]

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
        self.oracle.entered(member, self.state, self.others())

    # -- steps -------------------------------------------------------------------------

    def assign(self) -> None:
        """Assign the quanta of the next step."""
        member, view = self.member, self.view
        assert view is not None
        plan = member.plan
        assert plan is not None
        first = plan if member.version == plan.version else None
        if first is None or self.rules.asks_plan:
            table = self.pure.table(self.data.order.progress, view, first)
        else:
            table = self.data.table_from_memory(view)
        self.oracle.tabulated(view, member.version, table)
        member.assign(table.quanta[self.me.node])
        self.assigned_at = (view.id, member.version)
        self.data.assign(table, self.me.node, is_void=self.me in plan.void)

    def has_work(self, member: Member, version: int) -> bool:
        """Return whether a member computes quanta of a step, as far as known here."""
        table = self.data.table
        is_current = self.assigned_at is not None and self.assigned_at[1] == version - 1
        return table is None or not is_current or bool(table.quanta.get(member.node))

    def contribute(self) -> tuple[Attempt, tuple[Entry, float, float]] | None:
        """Begin the next attempt; return what this member sends of each bucket."""
        member, data = self.member, self.data
        attempt = member.next_attempt
        if not member.begin(attempt, NUM_BUCKETS):
            return None
        self._open_result(attempt, held=0)
        sent, added = data.encode(attempt)
        text = f"{self.me}, {attempt}: {added}, not {data.clean_residuals}"
        self.oracle.check(added == data.clean_residuals, "I13", text)
        self.oracle.began(member, attempt, data.contribution(), sent)
        return attempt, (data.entry(self.me.node, self.flags), *sent)

    def begin_gather(self) -> bool:
        """Begin the gather of the plan; return False if a freeze came first."""
        member = self.member
        plan = member.plan
        assert plan is not None
        assert isinstance(plan.action, Gather)
        attempt = plan.action.attempt
        if not member.begin(attempt, NUM_BUCKETS):
            return False
        assert member.partial is not None
        self._open_result(attempt, held=member.partial.buckets)
        return True

    def _open_result(self, attempt: Attempt, held: int) -> None:
        """Take the memory of a result: what was in it may be overwritten now."""
        data, member = self.data, self.member
        data.open_result(attempt.version, held)
        num_results = data.num_results
        self.oracle.check(num_results <= 2, "I11", f"{self.me}: {num_results} results")
        if member.result is not None and member.stable_version < member.version:
            last = member.result.attempt
            stored = data.result(last.version)
            self.oracle.check_held(f"{self.me} lost {last}", last, stored)

    def take_bucket(
        self, view_id: ViewId, attempt: Attempt, bucket: int, value: Content
    ) -> bool:
        """Store a final bucket; return True if the attempt is complete now."""
        member = self.member
        if not member.bucket_done(attempt, bucket):
            return False
        self.data.store(attempt.version, bucket, value)
        if attempt.view == view_id and bucket > 0:
            self.data.encoded(attempt, bucket)
        return member.partial is not None and member.partial.is_complete

    def deliver(self, view_id: ViewId, attempt: Attempt) -> None:
        """Deliver the attempt that was completed in a view, and apply it."""
        member, data = self.member, self.data
        was_frozen = self.frozen_for is not None
        if not member.deliver(view_id, data.num_samples(attempt.version)):
            return
        text = f"{self.me} delivered {attempt} after its status"
        self.oracle.check(not was_frozen, "I4", text)
        result = data.result(attempt.version)
        self.oracle.delivered(member, result, data.order.progress)
        data.deliver(attempt, apply(data.model, result))
        self._take_snapshot()
        self.oracle.applied(member, self.state, self.others())

    # -- copies of the state -----------------------------------------------------------

    def _take_snapshot(self) -> None:
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
                *self.state,
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
            self.disk = Disk(snapshot, self.pure.plain(snapshot.progress))

    def serve_state(self, view_id: ViewId) -> tuple[Values, dict[str, Any]] | None:
        """Return the state for an adopter in a view, if this member has it."""
        member = self.member
        plan = member.plan
        if plan is None or member.plan_view.id != view_id or member.must_adopt:
            return None
        if member.version != plan.version and self.rules.waits_for_gather:
            return None
        return self.data.model, self.pure.plain(self.data.order.progress)

    def take_state(
        self, view_id: ViewId, part: int, model: Values, data: dict[str, Any]
    ) -> None:
        """Take one of the two parts of a state; the second one completes it."""
        member = self.member
        if not member.must_adopt:
            return
        if part == 0 and not self.has_first_part:
            self.has_first_part = True
            is_kept = self.rules.keeps_state and not member.is_torn
            if not is_kept and member.begin_adopt(view_id):
                self.data.model = (model[0], -1.0)
            if not self.rules.completes_copy:
                member.adopt(view_id, data["progress"]["state"]["samples"])
        elif part == 1 and self.has_first_part:
            samples = data["progress"]["state"]["samples"]
            if member.adopt(view_id, samples):
                self.data.adopt(model, data)
                self._share_progress()
                self.snapshots = {}
                self.oracle.adopted(member, self.state, self.others())
        self.oracle.kept(member, self.state)

    def report(self) -> bytes:
        """Return the status of this member for the view that it is frozen for."""
        self.oracle.kept(self.member, self.state)
        return encode_status(self.member.status())
