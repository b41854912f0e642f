"""PlanExecution: completes a result in a new view, and gives the state to newcomers.

Runs on the user's thread of every member, over the new group. It raises ViewChanged, or
an error of the group, when another view has to come first; that has its own plan.
"""

from __future__ import annotations

import logging

import torch

from ringleader.errors import LayoutMismatch, ProtocolError
from ringleader.groups.caller_observer import phase
from ringleader.groups.group import Group
from ringleader.membership.member import Member
from ringleader.membership.steps.plan import Gather
from ringleader.training.bucket_reducer import Sidebands
from ringleader.training.flat_buffers import FlatBuffers
from ringleader.training.following import Following
from ringleader.training.installed_view import InstalledView, ViewChanged
from ringleader.training.kill_points import reach
from ringleader.training.state import second_copy
from ringleader.training.state.transfer import Roles, transfer_state
from ringleader.training.view_session import ViewSession

_log = logging.getLogger(__name__)

MAX_SIDEBAND_BYTES = 1 << 30


class PlanExecution:
    """The parts of a member that a plan changes."""

    def __init__(
        self,
        session: ViewSession,
        buffers: FlatBuffers,
        sidebands: Sidebands,
        following: Following,
    ) -> None:
        self._session = session
        self._buffers = buffers
        self._sidebands = sidebands
        self._following = following

    def gather(self, installed: InstalledView, group: Group | None) -> bool:
        """Complete the result of the plan; True if this member lacked it.

        Then it holds the whole result, and has yet to deliver it.
        """
        action = installed.plan.action
        if not isinstance(action, Gather):
            return False
        num_buckets = len(action.holders)
        lacking = _lacking(installed, action)
        me = self._session.step.me
        is_late = me in lacking
        if is_late and not self._session.begin(action.attempt, num_buckets):
            raise ViewChanged
        for bucket, holder in enumerate(action.holders):
            reach(f"gather:{bucket}")
            if group is not None and any(bucket in b for b in lacking.values()):
                src = installed.rank_of(holder)
                self._broadcast(group, action.attempt.version, bucket, src)
            if is_late:
                self._session.bucket_done(action.attempt, bucket)
        return is_late

    def _broadcast(self, group: Group, version: int, bucket: int, src: int) -> None:
        if bucket:
            group.broadcast(self._buffers.result_part(version, bucket - 1), src)
            return
        num_bytes = self._sidebands.of(version).numel()
        length = torch.tensor([num_bytes])
        group.broadcast(length, src)
        size, rest = divmod(int(length), self._sidebands.layout.num_bytes)
        if rest or size < 1 or int(length) > MAX_SIDEBAND_BYTES:
            raise ProtocolError(src, f"offered a sideband of {int(length)} bytes")
        group.broadcast(self._sidebands.room(version, size), src)

    def adopt(self, installed: InstalledView, group: Group | None) -> bool:
        """Give the state to members that lack it; True if this member was one.

        It is in the history of the others then. If this raises, it is in its own, whose
        state is here as it was, unless there was no memory for two.

        Raises LayoutMismatch if this member's model is another one.
        """
        plan = installed.plan
        if self._session.step.me not in plan.adopt:
            self._following.state.forget_begun()
        if not plan.adopt or group is None:
            return False
        is_warm = self._begin_adopt(installed)
        reach("join:pull")
        roles = Roles(
            tuple(installed.rank_of(m) for m in plan.sources),
            tuple(sorted(installed.rank_of(m) for m in plan.adopt)),
        )
        is_new = self._session.step.me in plan.adopt

        def commit(values: bytes) -> None:
            self._enter_history(installed, values)

        with phase("join: take the state" if is_new else "join: give the state"):
            done = transfer_state(
                group,
                self._following.state,
                roles,
                names=installed.names,
                is_warm=is_warm,
                keeps=not self._session.step.is_torn,
                commit=commit if is_new else None,
            )
        for name, holder, target in done.repaired:
            machines = installed.names[target], installed.names[holder]
            _log.warning(
                "ringleader: %s on %s differed from that on %s: copied", name, *machines
            )
        if done.refused:
            for rank, why in done.refused.items():
                _log.warning(
                    "ringleader: %s does not take part: %s", installed.names[rank], why
                )
            raise ViewChanged  # those that refused leave the run
        return is_new

    def _enter_history(self, installed: InstalledView, values: bytes) -> None:
        """Be in the history of the others: what follows is local, and cannot be lost.

        Raises ViewChanged if a view was promised meanwhile, and LayoutMismatch.
        """
        data = self._following.state.other("data", values)
        try:
            samples = int(data["progress"]["state"]["samples"])
        except (LookupError, TypeError, ValueError) as exc:
            text = f"the state has no position in the data: {exc}"
            raise LayoutMismatch(text[:500]) from exc
        with self._session.lock:
            if not self._session.step.adopt(installed.view.id, samples):
                raise ViewChanged

    def _begin_adopt(self, installed: InstalledView) -> bool:
        """Give up the own state, if the plan says so and there is no memory for two.

        Returns True if most of it should be that of the run already. Of a source it
        tells whether newcomers are following it.
        """
        if self._session.step.me not in installed.plan.adopt:
            return self._following.is_followed
        step = self._session.step
        if step.is_torn or not second_copy.fits(self._following.state):
            with self._session.lock:
                if not step.begin_adopt(installed.view.id):
                    raise ViewChanged
        is_level = self._following.finish(installed.plan.version)
        return is_level or self._following.state.is_begun


def _lacking(installed: InstalledView, action: Gather) -> dict[Member, set[int]]:
    """Return the buckets that each member lacks which has yet to deliver the result."""
    late: dict[Member, set[int]] = {}
    for member, status in installed.statuses.items():
        is_late = status.version < action.attempt.version
        if not is_late or member in installed.plan.adopt:
            continue
        held = status.held_of(action.attempt)
        bits = held.buckets if held is not None else 0
        late[member] = {b for b in range(len(action.holders)) if not bits >> b & 1}
    return late
