"""MemberMachine: the product's membership machine and step protocol in one process.

It stands in for the control thread of a training process: it answers every freeze at
once with a status, and computes the plan of every view that is installed.
"""

from __future__ import annotations

from collections.abc import Callable

from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import (
    Action,
    Event,
    FreezeView,
    HealthChanged,
    InstallView,
    MessageReceived,
    SetPayload,
)
from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.messages import Heartbeat
from ringleader.membership.state_machine import MembershipMachine
from ringleader.simulation.steps.node import StepNode

Install = Callable[[StepNode, View], None]


class MemberMachine:
    """One life of a machine that trains; a ``SimulatedMachine``."""

    def __init__(
        self, me: Member, config: MembershipConfig, node: StepNode, install: Install
    ) -> None:
        self.me = me
        self._machine = MembershipMachine(me, config=config)
        self.wake_at_s = self._machine.wake_at_s
        self._node = node
        self._install = install
        self._heard: dict[Member, ViewId] = {}

    @property
    def view(self) -> View | None:
        """The view in force at this node."""
        return self._machine.view

    @property
    def is_frozen(self) -> bool:
        """Whether the node has promised a newer view."""
        return self._machine.is_frozen

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process one event; freezes are answered before it returns."""
        if isinstance(event, SetPayload):
            return []  # the cluster's own payloads mean nothing here
        if isinstance(event, MessageReceived) and isinstance(event.message, Heartbeat):
            self._heard[event.peer] = event.message.report.promised
        actions = list(self._machine.step(event, now_s))
        for action in actions:  # grows while it is read
            match action:
                case FreezeView(id=view_id, members=members):
                    payload = self._status(view_id, members)
                    answer = SetPayload(payload, view_id)
                    actions += self._machine.step(answer, now_s)
                case InstallView(view=view):
                    self._install(self._node, view)
                case HealthChanged(peer=peer, is_proven=True):
                    self._note_ended(peer)
        self.wake_at_s = self._machine.wake_at_s
        return actions

    def _status(self, view_id: ViewId, members: tuple[Member, ...]) -> bytes:
        node = self._node
        node.member.freeze(view_id, members)
        node.frozen_for = view_id
        return self.me.incarnation.encode() + node.report()

    def _note_ended(self, peer: Member) -> None:
        """Use a proof only if the last promise is known.

        The network of this simulation loses heartbeats, which the TCP links of the
        product do not: what was heard last is compared with the truth.
        """
        for node in self._node.peers:
            is_it = node.life >= 0 and node.me == peer
            if is_it and self._heard.get(peer) == node.member.newest_promise:
                self._node.member.note_ended(peer, node.member.newest_promise)


def without_prefix(view: View) -> View:
    """Return a view whose payloads are statuses, without the ids of their senders."""
    size = len(view.members[0].incarnation)
    return View(view.id, view.members, tuple(p[size:] for p in view.payloads))
