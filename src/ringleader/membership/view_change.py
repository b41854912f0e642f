"""ViewChange brings a new view into force in two phases: freeze, then install.

The leader proposes a view under a new id, greater than every id it has heard of. A
member that prefers this leader promises the id, freezes, and answers with its payload.
When all have answered, the leader commits: it fixes the ring order, installs the view
and sends it to all members until each has acknowledged it.

A node promises ever greater ids, and installs only the view it promised last. An id is
used once (the leader counts up, and its incarnation is part of the id), so an id stands
for the same content everywhere. A promise that leads to nothing, because the leader
died or gave up, does not block: the next leader sees it in a report or a refusal,
counts beyond it and proposes again. So every freeze ends with an install.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ringleader.errors import ConfigError
from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import Action, FreezeView, InstallView, Send
from ringleader.membership.member import NO_VIEW, Member, Order, View, ViewId
from ringleader.membership.messages import Ack, Commit, Message, Propose, Refuse, Status

_MAX_BACKOFF = 8
"""The longest wait for an answer, as a multiple of the first."""


class Proposal:
    """A proposed view and the statuses received so far."""

    __slots__ = ("id", "members", "statuses")

    def __init__(self, name: ViewId, members: tuple[Member, ...]) -> None:
        self.id = name
        self.members = members
        self.statuses: dict[Member, Status] = {}


class ViewChange:
    """The member's and the leader's side; owned by a state machine, appends to
    ``out``."""

    def __init__(
        self, me: Member, config: MembershipConfig, order: Order, out: list[Action]
    ) -> None:
        self.me = me
        self.view: View | None = None
        self.members: tuple[Member, ...] = ()
        """Members of the view, by seniority."""
        self.view_id = NO_VIEW
        self.promised = NO_VIEW
        self.counter = 0
        """The highest counter ever heard of."""
        self.proposal: Proposal | None = None
        self.unacked: set[Member] = set()
        self.payload = b""
        self.refreshes = 0
        self.refreshes_done: dict[Member, int] = {}
        self.is_changed = False
        """Something changed that others should know, or that requires a decision."""
        self.retry_at_s = inf
        self.answer_at_s = inf
        """When a status that waits for a fresh payload is sent with the old one."""
        self._is_asked = False
        """True while a status waits for a fresh payload."""
        self._retry_s = config.retry_s
        self._asker: Member | None = None
        self._status: Status | None = None
        self._config = config
        self._order = order
        self._out = out

    @property
    def is_frozen(self) -> bool:
        """True if a view was promised that is not in force yet."""
        return self.promised != self.view_id

    @property
    def is_leader(self) -> bool:
        """True if the view in force is led by this node."""
        return self.view_id[1:] == (self.me.node, self.me.incarnation)

    def note(self, name: ViewId) -> None:
        """Remember the highest counter."""
        self.counter = max(self.counter, name.counter)

    # -- as a member -------------------------------------------------------------------

    def promise(
        self, sender: Member, message: Propose, prefers: Member, now_s: float
    ) -> None:
        """Handle a leader's proposal: freeze, answer again, or refuse."""
        name = message.id
        self.note(name)
        if name == self.promised:
            self._answer_again(sender, name)
        elif name < self.promised:
            self._send(sender, Refuse(name, self.promised))
        elif prefers == sender and self.me in message.members:
            self._freeze(message, sender, now_s)

    def install(self, sender: Member, view: View) -> None:
        """Handle a leader's commit: install the view and acknowledge, or refuse."""
        self.note(view.id)
        is_new = view.id == self.promised and self.is_frozen
        if is_new and self.me in view.members:
            self._enter(view)
        if view.id == self.view_id:
            self._send(sender, Ack(view.id))
        elif view.id < self.promised:
            self._send(sender, Refuse(view.id, self.promised))

    def renew(self, payload: bytes, view: ViewId | None, now_s: float) -> None:
        """Store a new payload of this node; a freeze may be waiting for it.

        One that was made for another ``view`` than the promised one is ignored.
        """
        if view is not None and view != self.promised:
            return
        self.payload = payload
        is_fresh = view is not None or not self._config.answers_only_fresh
        if self._is_asked and is_fresh:
            self._answer(now_s)

    def _freeze(self, proposed: Propose, leader: Member, now_s: float) -> None:
        self.promised = proposed.id
        self.is_changed = True
        self._asker = leader
        self._out.append(FreezeView(proposed.id, leader, proposed.members))
        self._is_asked = True
        self.answer_at_s = now_s + self._config.payload_wait_s
        if self._config.payload_wait_s == 0:
            self._answer(now_s)

    def _answer(self, now_s: float) -> None:
        self._is_asked = False
        self.answer_at_s = inf
        self._status = Status(self.promised, self.payload, self.refreshes)
        if self._asker == self.me:
            self.collect(self.me, self._status, now_s)
        elif self._asker is not None:
            self._send(self._asker, self._status)

    def _answer_again(self, sender: Member, name: ViewId) -> None:
        if not self.is_frozen:
            self._send(sender, Ack(name))
        elif self._status is not None and self._status.id == name:
            self._send(sender, self._status)  # unchanged: the first answer holds

    def _enter(self, view: View) -> None:
        self.view = view
        self.view_id = view.id
        self.is_changed = True
        self.members = tuple(sorted(view.members))
        self._is_asked = False
        self.answer_at_s = inf
        self._out.append(InstallView(view))

    # -- as the leader -----------------------------------------------------------------

    def propose(self, members: tuple[Member, ...], now_s: float) -> None:
        """Propose a view of ``members``, which include this node."""
        self.counter += 1
        name = ViewId(self.counter, self.me.node, self.me.incarnation)
        self.proposal = Proposal(name, members)
        self.unacked = set()
        self._retry_s = self._config.retry_s
        self.retry_at_s = now_s + self._retry_s
        proposed = Propose(name, members)
        for member in members:
            if member != self.me:
                self._send(member, proposed)
        self._freeze(proposed, self.me, now_s)

    def collect(self, sender: Member, status: Status, now_s: float) -> None:
        """Handle the status of a frozen member; the last one completes the view."""
        proposal = self.proposal
        if proposal is None or status.id != proposal.id:
            return
        if sender in proposal.members:
            proposal.statuses[sender] = status
        if len(proposal.statuses) == len(proposal.members):
            self._commit(proposal, now_s)

    def acknowledge(self, sender: Member, name: ViewId) -> None:
        """Handle a member's acknowledgement that it installed a view."""
        if name == self.view_id:
            self.unacked.discard(sender)

    def refused(self, message: Refuse) -> None:
        """Handle a refusal: count beyond the promised view and start again."""
        self.note(message.promised)
        if self.proposal is not None and message.id == self.proposal.id:
            self.proposal = None
            self.is_changed = True

    def follow(self) -> None:
        """Drop our own proposal: another node leads."""
        self.proposal = None
        self.unacked = set()
        self.retry_at_s = inf

    def tick(self, now_s: float, is_linked: Callable[[Member], bool]) -> None:
        """Send again what was not answered."""
        if now_s >= self.answer_at_s:
            self._answer(now_s)
        if now_s < self.retry_at_s:
            return
        silent, message = self._unanswered()
        if message is None:
            self.retry_at_s = inf
            return
        for member in silent:
            if is_linked(member):
                self._send(member, message)
        self._retry_s = min(2 * self._retry_s, _MAX_BACKOFF * self._config.retry_s)
        self.retry_at_s = now_s + self._retry_s

    def _unanswered(self) -> tuple[list[Member], Message | None]:
        proposal = self.proposal
        if proposal is not None:
            silent = [m for m in proposal.members if m not in proposal.statuses]
            if self.me in silent:
                silent.remove(self.me)
            return silent, Propose(proposal.id, proposal.members)
        if self.unacked and self.view is not None:
            return sorted(self.unacked), Commit(self.view)
        return [], None

    def _commit(self, proposal: Proposal, now_s: float) -> None:
        payloads = {m: proposal.statuses[m].payload for m in proposal.members}
        ring = tuple(self._order(proposal.members, payloads))
        if sorted(ring) != list(proposal.members):
            text = f"order() must return a permutation of its {len(payloads)} members"
            raise ConfigError(f"membership: {text}, got {[str(m) for m in ring]}")
        view = View(proposal.id, ring, tuple(payloads[m] for m in ring))
        self.proposal = None
        self.refreshes_done = {m: s.refreshes for m, s in proposal.statuses.items()}
        self._enter(view)
        self.unacked = {m for m in ring if m != self.me}
        self._retry_s = self._config.retry_s
        self.retry_at_s = now_s + self._retry_s if self.unacked else inf
        commit = Commit(view)  # one for all: it is encoded once
        for member in sorted(self.unacked):
            self._send(member, commit)

    def _send(self, to: Member, message: Message) -> None:
        self._out.append(Send(to, message))
