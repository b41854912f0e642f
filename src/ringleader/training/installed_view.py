"""InstalledView: a view that is in force, its plan, and the group that it forms."""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Cancellation, Deadline
from ringleader.errors import DeadlineExceeded, LayoutMismatch, RingleaderError
from ringleader.groups.group import Group
from ringleader.groups.known_links import KnownLinks
from ringleader.groups.view_group import decode_endpoint, form_view_group
from ringleader.ids import NodeId, tell_apart
from ringleader.membership.member import Member, View
from ringleader.membership.steps.plan import StepPlan
from ringleader.membership.steps.status import StepStatus
from ringleader.training.member_data import (
    MemberData,
    decode_data,
    layout_difference,
)
from ringleader.transport.dialer import Endpoint
from ringleader.transport.shared_listener import ListenerLease

FORM_S = 20.0
"""A LAN needs 50 ms; a member that cannot be reached at all is evicted meanwhile."""

OPERATION_S = 3600.0
"""Limit of one operation: members wait in it for the slowest one's quanta. Dead and
hung members are found by the membership long before."""


class ViewChanged(Exception):
    """What was begun in a view cannot be finished; another view follows."""


@dataclass(slots=True, eq=False)
class InstalledView:
    """One view on one member. Its group is formed by a thread of its own."""

    view: View
    plan: StepPlan
    statuses: Mapping[Member, StepStatus]
    rank: int
    _cancellation: Cancellation = field(default_factory=Cancellation)
    _formed: threading.Event = field(default_factory=threading.Event)
    _group: Group | None = None
    _error: RingleaderError | None = None
    _is_first_step: bool = True

    @property
    def nodes(self) -> list[NodeId]:
        """The members in ring order."""
        return [member.node for member in self.view.members]

    @property
    def names(self) -> list[str]:
        """Names of the machines in ring order; with the id where they are equal."""
        named = {m.node: self.data_of(m).name or str(m) for m in self.view.members}
        return list(tell_apart(named).values())

    def data_of(self, member: Member) -> MemberData:
        """Return what a member told about itself."""
        return decode_data(self.statuses[member].data, member)

    @property
    def is_exact(self) -> bool:
        """Whether all members compute equal bits."""
        return len({self.data_of(m).fingerprint for m in self.view.members}) == 1

    def check_layouts(self) -> None:
        """Raise LayoutMismatch if this member's layout is not that of the run.

        Raises ViewChanged if another member's is not: that one leaves.
        """
        source = self.plan.sources[0]
        mine, first = self.data_of(self.view.members[self.rank]), self.data_of(source)
        if difference := layout_difference(mine, first):
            text = f"elastic: this machine differs from {first.name} in {difference}"
            raise LayoutMismatch(f"{text}; start the same script with the same options")
        for member in self.view.members:
            if layout_difference(self.data_of(member), first):
                raise ViewChanged

    def rank_of(self, member: Member) -> int:
        """Return the rank of ``member`` in the group."""
        return self.view.members.index(member)

    def start_forming(
        self, lease: ListenerLease, known: KnownLinks, *, share_memory: bool = True
    ) -> None:
        """Form the group in a new thread; a view of one member needs none."""
        if len(self.view.members) == 1:
            self._formed.set()
            return
        threading.Thread(
            target=self._form,
            args=(lease, known, share_memory),
            name="ringleader-form",
            daemon=True,
        ).start()

    def group(self, deadline: Deadline) -> Group | None:
        """Return the group; None in a view of one member. Raises if it did not form."""
        if not self._formed.wait(deadline.left_s()):
            text = f"the group of view {self.view.id} did not form in time"
            raise DeadlineExceeded("other members", text)
        if self._error is not None:
            raise self._error
        return self._group

    def abort(self, reason: str) -> None:
        """End the group, or its forming; from any thread, idempotent."""
        self._cancellation.cancel(reason)

    def close(self) -> None:
        """Free the group's connections; after ``abort``, or when all have finished."""
        if self._formed.wait(FORM_S) and self._group is not None:
            self._group.close()

    def step_done(self) -> None:
        """Free the memory of the views before this one, after its first step.

        Their closed groups are cycles of long-lived objects, which Python looks for
        only now and then, and each holds megabytes of shared memory. Looking takes 50
        to 100 ms: not before the first step, which people wait for.
        """
        if self._is_first_step:
            self._is_first_step = False
            gc.collect()

    def _form(
        self, lease: ListenerLease, known: KnownLinks, share_memory: bool
    ) -> None:
        try:
            self._group = form_view_group(
                f"run:{self.view.id.counter}:{self.view.id.leader}"
                f":{self.view.id.incarnation}",
                self.rank,
                self._endpoints(),
                lease,
                deadline=Deadline.after(FORM_S, self._cancellation),
                known=known,
                config=CollectiveConfig(timeout_s=OPERATION_S),
                share_memory=share_memory,
            )
        except RingleaderError as exc:
            self._error = exc
        finally:
            self._formed.set()

    def _endpoints(self) -> Sequence[Endpoint]:
        return [
            decode_endpoint(self.data_of(m).endpoint, rank)
            for rank, m in enumerate(self.view.members)
        ]
