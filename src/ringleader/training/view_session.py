"""ViewSession: views of the control thread, made available to the user's thread.

The control thread freezes and installs, and never waits for user code. The user's
thread computes, reduces and executes plans. Both see the step protocol of this member
through one lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, InternalError, RingleaderError
from ringleader.groups.known_links import KnownLinks
from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.decide import Partition, decide
from ringleader.membership.steps.status import encode_status, read_statuses
from ringleader.membership.steps.step_member import StepMember
from ringleader.node.protocol.run_peers import RunPeers
from ringleader.training.control.work_watch import WorkWatch
from ringleader.training.installed_view import InstalledView
from ringleader.training.kill_points import reach
from ringleader.training.member_data import MemberData, encode_data
from ringleader.transport.shared_listener import ListenerLease

_log = logging.getLogger(__name__)

PLANNED_S: Final = (1.0, 8.0)
"""A view that only adds members waits at least, and at most, so long until the quanta
of a step are computed. The control thread wants an answer within ten seconds."""


def planned_wait_s(step_s: float) -> float:
    """Return how long a join waits at most, given how long the last step took."""
    least_s, most_s = PLANNED_S
    return min(max(least_s, 1.5 * step_s), most_s)


class Membership(Protocol):
    """What the session asks of the control thread."""

    me: Member
    work_watch: WorkWatch

    @property
    def peers(self) -> RunPeers | None:
        """What the peer source told last; None: nothing yet, or there is none."""

    @property
    def has_source(self) -> bool:
        """True if a peer source tells who is in the run."""

    def answer(self, view_id: ViewId, status: bytes) -> None:
        """Give the status of this member for a view."""

    def refresh(self) -> None:
        """Ask for a new view of the same members."""

    def suspect(self, member: Member, why: str) -> None:
        """Find out at once whether a member is alive."""

    def close(self) -> None:
        """Say goodbye and end the thread."""


@dataclass(frozen=True, slots=True)
class _Deferred:
    view_id: ViewId
    members: tuple[Member, ...]


class ViewSession:
    """The hooks of the control thread, and what the user's thread needs of views."""

    def __init__(
        self, data: MemberData, lease: ListenerLease, partition: Partition
    ) -> None:
        self.lock = threading.Condition()
        self.is_stepping = False
        """True while a step runs in the installed view: a join may wait for it."""
        self.data = data
        self.read_endpoint: Callable[[], bytes] = lambda: data.endpoint
        """Returns where groups reach this process now. Called by both threads."""
        self.shares_memory = True
        """False: groups use sockets between processes of one machine, too."""
        self._lease = lease
        self._partition = partition
        self._known = KnownLinks()
        self._installed: InstalledView | None = None
        self._deferred: _Deferred | None = None
        self._step_s = 0.0
        """Time between the last two deliveries."""
        self._delivered_s = math.inf
        self._error: RingleaderError | None = None

    @property
    def work_watch(self) -> WorkWatch:
        """Watches that user code returns; it lives in the control thread."""
        return self._membership.work_watch

    def bind(self, membership: Membership, *, has_state: bool = True) -> None:
        """Set the control thread, before it starts."""
        self._membership = membership
        self.step = StepMember(membership.me, self._partition, has_state=has_state)
        """Use it under ``lock`` only."""

    # -- ViewHooks: the control thread -----------------------------------------------

    def freeze(self, view_id: ViewId, members: tuple[Member, ...]) -> None:
        """Promise a view; one that only adds members waits for ``freeze_planned``."""
        reach("prepare")
        with self.lock:
            installed = self._installed
            is_planned = (
                installed is not None
                and len(installed.view.members) > 1
                and self.is_stepping
                and not self.step.is_frozen
                and set(installed.view.members) <= set(members)
            )
            if is_planned:
                self._deferred = _Deferred(view_id, members)
                loop = asyncio.get_running_loop()
                wait_s = planned_wait_s(self._step_s)
                loop.call_later(wait_s, self._freeze_deferred, view_id)
            else:
                self._freeze_now(view_id, members)

    def install(self, view: View) -> None:
        """Enter a view: compute its plan and form its group."""
        statuses = read_statuses(view)
        plan = decide(view, statuses, partition=self._partition)
        rank = view.members.index(self.step.me)
        installed = InstalledView(view, plan, statuses, rank)
        with self.lock:
            self.step.install(view, plan)
            if self._installed is not None:  # all have finished with its group
                self._installed.abort(f"view {view.id} is in force")
            self._installed = installed
            installed.start_forming(
                self._lease, self._known, share_memory=self.shares_memory
            )
            self.lock.notify_all()
        _log.info("view %s: %d members, %s", view.id, len(view.members), plan.action)
        reach("install")

    def ended(self, member: Member, promised: ViewId | None) -> None:
        """Note that a life is proven to have ended, if its last promise is known.

        Without it, it may have helped to form a view that nobody here knows.
        """
        if promised is not None:
            with self.lock:
                self.step.note_ended(member, promised)

    def expelled(self, why: str) -> None:
        """Give up the group: the others have gone on."""
        _log.warning("ringleader: the others went on without this process: %s", why)
        with self.lock:
            if self._installed is not None:
                self._installed.abort(why)

    def failed(self, error: RingleaderError) -> None:
        """Let every call of the user's thread raise the error."""
        with self.lock:
            self._error = error
            if self._installed is not None:
                self._installed.abort(str(error))
            self.lock.notify_all()

    # -- the user's thread -----------------------------------------------------------

    def begin(self, attempt: Attempt, num_buckets: int) -> bool:
        """Start an attempt; False if a view was promised."""
        with self.lock:
            return self.step.begin(attempt, num_buckets)

    def bucket_done(self, attempt: Attempt, bucket: int) -> None:
        """Record a final bucket; called by threads of the group."""
        with self.lock:
            self.step.bucket_done(attempt, bucket)

    def deliver(self, entered: InstalledView, samples: int, *, is_kept: bool) -> bool:
        """Record that the result of ``entered`` is applied; False if a view follows.

        ``is_kept`` is False if the result cannot be served to others.
        """
        with self.lock:
            if not self.step.deliver(entered.view.id, samples):
                return False
            now_s = time.monotonic()
            self._step_s = max(0.0, now_s - self._delivered_s)
            self._delivered_s = now_s
            if not is_kept:
                self.step.result = None
        return True

    def freeze_planned(self, *, aborts: bool = True) -> None:
        """Answer a freeze that waited for a moment at which it costs least.

        That is when the quanta of a step are computed and its reduction has not begun:
        a newcomer got the last step meanwhile, nothing is computed or sent twice, and
        it takes part in this step. A member that is in the reduction already is told by
        the end of the group, unless ``aborts`` is False.
        """
        with self.lock:
            deferred = self._deferred
            if deferred is not None:
                self._freeze_now(deferred.view_id, deferred.members, aborts=aborts)

    @property
    def last_attempt(self) -> Attempt:
        """The attempt that was delivered last."""
        with self.lock:
            if self.step.last is None:
                raise InternalError("elastic: no step was delivered yet")
            return self.step.last

    @property
    def is_frozen(self) -> bool:
        """True from the promise of a view until it, or a later one, is installed."""
        with self.lock:
            return self.step.is_frozen

    @property
    def is_awaited(self) -> bool:
        """True if others wait for this member: to promise a view, or for the view."""
        with self.lock:
            self._check()
            return self._deferred is not None or self.step.is_frozen

    @property
    def peers(self) -> RunPeers | None:
        """The other members of the run; None until the agent has named them."""
        return self._membership.peers if self._membership.has_source else RunPeers()

    def current(self) -> InstalledView | None:
        """Return the view in force; None before the first one."""
        with self.lock:
            self._check()
            return self._installed

    def wait_view(
        self, is_enough: Callable[[InstalledView], bool], deadline: Deadline
    ) -> InstalledView:
        """Return the view in force as soon as it is good enough and not frozen."""
        with self.lock:
            while True:
                self._check()
                found = self._installed
                if found is not None and not self.step.is_frozen and is_enough(found):
                    return found
                if deadline.is_over():
                    text = f"no view of the run came within {deadline.after_s:g} s"
                    raise DeadlineExceeded("other members", text)
                self.lock.wait(min(deadline.left_s(), 0.5))

    def suspect(self, installed: InstalledView, rank: int, why: str) -> None:
        """Let the membership find out at once whether a member is alive."""
        self._membership.suspect(installed.view.members[rank], why)

    def refresh(self) -> None:
        """Ask for a new view of the same members."""
        self._membership.refresh()

    def close(self) -> None:
        """Leave the run."""
        self._membership.close()
        self._lease.close()

    def _check(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    # -- both, with the lock held ----------------------------------------------------

    def _freeze_deferred(self, view_id: ViewId) -> None:
        with self.lock:
            deferred = self._deferred
            if deferred is not None and deferred.view_id == view_id:
                self._freeze_now(view_id, deferred.members)

    def _freeze_now(
        self, view_id: ViewId, members: tuple[Member, ...], *, aborts: bool = True
    ) -> None:
        self._deferred = None
        if not self.step.freeze(view_id, members):
            return
        self.data = msgspec.structs.replace(self.data, endpoint=self.read_endpoint())
        status = encode_status(self.step.status(encode_data(self.data)))
        self._membership.answer(view_id, status)
        if aborts and self._installed is not None:
            self._installed.abort(f"view {view_id} follows")
        reach("status")
