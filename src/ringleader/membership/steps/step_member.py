"""StepMember: the step protocol of one member, without clocks, threads or tensors.

In each view: ``freeze`` and ``status``, then ``install`` with the plan of the view.
Then for every step ``begin``, ``bucket_done`` for each bucket, ``deliver``.

``freeze`` promises a view: from then on nothing of an older view is accepted or
delivered. The control thread calls freeze and install, the user's thread all the rest,
and a freeze (even the install after it) may come between two calls of the user's
thread. So those calls name the view or the attempt that they belong to, and return
False and change nothing if it is over. A call that the protocol never allows raises
InternalError.

The caller holds one lock around every call. It calls ``deliver`` before the optimizer
step. A member that has a history keeps its state until another one has arrived in full
and was compared: it calls ``adopt`` before the first byte is overwritten. One that has
nothing to lose, or no memory for a second state, calls ``begin_adopt`` before that.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringleader.errors import InternalError
from ringleader.membership.member import NO_VIEW, Member, View, ViewId
from ringleader.membership.steps.attempt import Attempt, extend_chain
from ringleader.membership.steps.decide import Partition
from ringleader.membership.steps.plan import Gather, StepPlan
from ringleader.membership.steps.promises import Promises
from ringleader.membership.steps.status import (
    MAX_ENDED,
    Ended,
    HeldResult,
    Promise,
    StepStatus,
    held_result,
)


class StepMember:
    """One member's part in the steps: its delivered version, its data and its promises.

    ``version`` is the number of steps it has delivered. ``result`` is what it holds of
    that version, for others that may lack it, and ``partial`` what has arrived of the
    next one. ``status`` reports all of it when a view changes.
    """

    def __init__(
        self, me: Member, partition: Partition = "continue", *, has_state: bool = True
    ) -> None:
        self.me = me
        self.lineage = ""
        self.version = 0
        self.chain = b""
        self.chain_before = b""
        self.last: Attempt | None = None
        self.samples = 0
        self.stable_version = -1
        """The last version that all members of the view are known to have delivered: it
        stays in this lineage for good. -1: none is known."""
        self.view = Promise(NO_VIEW, ())
        """The last view whose plan is done here. A member that still gathers or copies
        does not speak for the view it is in: it may lack what the others have."""
        self.plan: StepPlan | None = None
        """The plan of the view installed last; None before the first one."""
        self.plan_view = Promise(NO_VIEW, ())
        self.quanta: tuple[int, ...] = ()
        self.quanta_view = NO_VIEW
        self.result: HeldResult | None = None
        """The result of ``version``; None if it was adopted or read from a file."""
        self.partial: HeldResult | None = None
        """What is there of ``version + 1``."""
        self.attempt: Attempt | None = None
        """The attempt, or the gather, that runs now."""
        self._promises = Promises(keeps_left=partition == "majority")
        self._is_frozen = False
        self._must_adopt = False
        self._is_torn = not has_state
        self._ended: dict[Member, ViewId] = {}

    @property
    def is_frozen(self) -> bool:
        """True from the promise of a view until it, or a later one, is installed."""
        return self._is_frozen

    @property
    def must_adopt(self) -> bool:
        """True until this member has the state that the plan tells it to take."""
        return self._must_adopt

    @property
    def is_torn(self) -> bool:
        """True if there is no complete state here: it was overwritten in part, or this
        process joins a run and has yet to get one."""
        return self._is_torn

    @property
    def is_ready(self) -> bool:
        """True if the plan is done: the next step may be reduced."""
        plan = self.plan
        return (
            plan is not None
            and not (plan.is_paused or self._is_frozen or self._must_adopt)
            and self.version >= plan.version
        )

    @property
    def next_attempt(self) -> Attempt:
        """The attempt at the next step in the view in force."""
        return Attempt(self.view.id, self.version + 1)

    # -- view changes ------------------------------------------------------------------

    def restore(
        self,
        version: int,
        chain: bytes,
        chain_before: bytes,
        last: Attempt,
        samples: int,
    ) -> None:
        """Enter the history of a state that was read or copied outside any view.

        Before the first view, or where the own state was lost and nobody has one.
        """
        if self.lineage or self._is_frozen:
            raise InternalError("step protocol: there is a history already")
        self._is_torn = False
        self.version, self.last, self.samples = version, last, samples
        self.chain, self.chain_before = chain, chain_before

    def note_ended(self, member: Member, promised: ViewId) -> None:
        """Record the proof that a life has ended; ``promised`` is its last promise."""
        self._ended.pop(member, None)
        self._ended[member] = promised
        while len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def freeze(self, view_id: ViewId, members: Iterable[Member]) -> bool:
        """Promise a view. Return False if it is not newer than all promised ones."""
        if view_id <= self.newest_promise:
            return False
        self._promises.add(Promise(view_id, tuple(members)))
        self._is_frozen = True
        self.attempt = None
        return True

    @property
    def newest_promise(self) -> ViewId:
        """The latest view that this member has promised or installed."""
        promised = self._promises.open
        return max(promised[-1].id if promised else NO_VIEW, self.plan_view.id)

    def status(self, data: bytes = b"") -> StepStatus:
        """Return the report for the view that this member is frozen for."""
        if not self._is_frozen:
            raise InternalError("step protocol: a status needs a freeze before it")
        *promised, answers = self._promises.open
        return StepStatus(
            answers=answers.id,
            lineage=self.lineage,
            view=self.view.id,
            view_members=self.view.members,
            promised=tuple(promised),
            left=tuple(self._promises.left),
            since=self._promises.since,
            paused=tuple(self._promises.paused),
            is_torn=self._is_torn,
            version=self.version,
            chain=self.chain,
            chain_before=self.chain_before,
            last=self.last,
            samples=self.samples,
            held=tuple(h for h in (self.result, self.partial) if h is not None),
            quanta=self.quanta,
            quanta_view=self.quanta_view,
            ended=tuple(Ended(m, v) for m, v in self._ended.items()),
            data=data,
        )

    def install(self, view: View, plan: StepPlan) -> None:
        """Enter ``view``, whose plan was computed by ``decide``."""
        promises = self._promises
        if not self._is_frozen or promises.open[-1].id != view.id:
            raise InternalError(f"step protocol: view {view.id} was not promised last")
        self._is_frozen = False
        self.attempt = None
        self.plan = plan
        self.plan_view = Promise(view.id, view.members)
        self._must_adopt = self.me in plan.adopt and not plan.is_paused
        if plan.is_paused:
            promises.pause()
        promises.rule_out(plan.ruled_out)
        if self.is_ready:
            self._enter(plan)
            if self.me in plan.void:
                self.quanta = ()

    def _enter(self, plan: StepPlan) -> None:
        """Continue the history in the view of the plan, which is done."""
        self._promises.enter(self.plan_view.id, self.view)
        self.lineage = plan.lineage
        self.view = self.plan_view
        self.chain = self.chain or plan.chain

    def assign(self, quanta: Iterable[int]) -> None:
        """Set the quanta of step ``version + 1`` that this member computes."""
        self.quanta = tuple(sorted(quanta))
        self.quanta_view = self.view.id

    # -- taking the state of another member --------------------------------------------

    def begin_adopt(self, view_id: ViewId) -> bool:
        """Give up the own history: its state is overwritten while the other comes."""
        if self._is_over(view_id):
            return False
        self._drop_history()
        self._is_torn = True
        return True

    def _drop_history(self) -> None:
        if not self._must_adopt:
            raise InternalError("step protocol: the plan tells to keep the own state")
        self.lineage, self.version, self.samples = "", 0, 0
        self.chain = self.chain_before = b""
        self.last = self.result = self.partial = None
        self.quanta, self.stable_version = (), -1

    def adopt(self, view_id: ViewId, samples: int) -> bool:
        """Enter the history of the plan: the state of a source is here, and complete.

        ``samples`` is the number of samples delivered in that history.
        """
        plan = self.plan
        if plan is None or self._is_over(view_id):
            return False
        self._drop_history()
        self.version, self.chain = plan.version, plan.chain
        self.chain_before, self.last = plan.chain_before, plan.last
        self.samples = samples
        self._is_torn = self._must_adopt = False
        self._enter(plan)
        return True

    def _is_over(self, view_id: ViewId) -> bool:
        return self._is_frozen or view_id != self.plan_view.id

    # -- steps -------------------------------------------------------------------------

    def begin(self, attempt: Attempt, num_buckets: int) -> bool:
        """Start an attempt, or the gather of the plan; drops older partial results."""
        is_gather = self._is_planned_gather(attempt)
        if self._is_frozen or not (is_gather or attempt.view == self.plan_view.id):
            return False
        if not is_gather and not (self.is_ready and attempt == self.next_attempt):
            raise InternalError(f"step protocol: {attempt} is not what the plan says")
        is_known = self.partial is not None and self.partial.attempt == attempt
        if is_known and not is_gather:
            raise InternalError(f"step protocol: {attempt} was begun before")
        if not is_known:
            self.partial = held_result(attempt, num_buckets, 0)
        self.attempt = attempt
        return True

    def _is_planned_gather(self, attempt: Attempt) -> bool:
        plan = self.plan
        return (
            plan is not None
            and not (plan.is_paused or self._must_adopt)
            and isinstance(plan.action, Gather)
            and plan.action.attempt == attempt
            and self.version == attempt.version - 1
        )

    def bucket_done(self, attempt: Attempt, bucket: int) -> bool:
        """Record that a bucket of the running attempt is final.

        Return False if it belongs to another attempt, or if a view was promised since.
        """
        partial = self.partial
        if self._is_frozen or attempt != self.attempt or partial is None:
            return False
        if not 0 <= bucket < partial.num_buckets:
            raise InternalError(f"step protocol: {attempt} has no bucket {bucket}")
        buckets = partial.buckets | 1 << bucket
        self.partial = held_result(attempt, partial.num_buckets, buckets)
        if attempt.view == self.view.id:  # every member contributed, so all had version
            self.stable_version = self.version
        return True

    def deliver(self, view_id: ViewId, samples: int) -> bool:
        """Record that the result held in this view is applied.

        ``samples`` is what it contains. Raises InternalError if buckets are missing.
        """
        partial = self.partial
        if self._is_over(view_id):
            return False
        if self.attempt is None or partial is None or not partial.is_complete:
            raise InternalError("step protocol: nothing complete to deliver")
        self.chain_before = self.chain
        self.chain = extend_chain(self.chain, partial.attempt)
        self.version += 1
        self.samples += samples
        self.last = partial.attempt
        self.result, self.partial, self.attempt = partial, None, None
        self.quanta = ()
        if self.plan is not None and self.view.id != self.plan_view.id:
            self._enter(self.plan)  # that was the gather of the plan
        return True
