"""MembershipMachine is the membership state of one node: events in, actions out.

Theory of operation. In every heartbeat, each node tells all its peers whom it hears,
whom it prefers as leader and, if that is itself, whom it invites (``election.py``). A
node that prefers itself aims at the view of itself and all invited peers that prefer
it. When that target has settled and differs from the view in force, the node proposes
it (``proposer.py``, ``view_change.py``). Each node decides for itself who is alive
(``peer_table.py``).

Lost, late, duplicated or reordered messages do no harm. A report is complete in itself,
repeated with each heartbeat, and only the newest counts. A proposal, status, commit,
acknowledgement or refusal carries the id of its view and is repeated until answered;
one for another id than the current one changes nothing but the counter.

Invariants, which ``ringleader.simulation.membership`` checks after every event:

* a view id stands for one leader, one set of members, one order, the same payloads;
* a node installs ever greater ids, and only views of which it is a member;
* after a freeze a node installs that view or a later one, and nothing else;
* once faults stop, all nodes that hear each other install one view, led by the most
  senior of them, and nobody stays frozen.

The state is mutable, for speed. There is no clock, no randomness, no I/O and no thread;
one caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import (
    Action,
    Event,
    KeyCloned,
    LeaveCluster,
    LinkDown,
    LinkUp,
    MachineSlept,
    MessageReceived,
    RefreshView,
    SetPayload,
    SuspectPeer,
    Tick,
)
from ringleader.membership.health_report import HealthReport
from ringleader.membership.heartbeats import HeartbeatSender
from ringleader.membership.member import (
    MAX_MEMBERS,
    MAX_PAYLOAD_BYTES,
    Member,
    Order,
    View,
    by_seniority,
)
from ringleader.membership.messages import (
    Ack,
    Commit,
    Goodbye,
    Heartbeat,
    Propose,
    Refuse,
    Status,
)
from ringleader.membership.peer import Peer
from ringleader.membership.peer_table import PeerTable
from ringleader.membership.proposer import Proposer
from ringleader.membership.view_change import ViewChange


class MembershipMachine:
    """The state of one node. Call ``step`` for every event, and at ``wake_at_s``."""

    def __init__(
        self,
        me: Member,
        config: MembershipConfig | None = None,
        *,
        order: Order = by_seniority,
    ) -> None:
        self.me = me
        self.config = config = config or MembershipConfig()
        self.has_left = False
        self.wake_at_s = -inf
        """When the next ``Tick`` is due; an early one is harmless."""
        self._stepped_at_s = -inf
        self._out: list[Action] = []
        self._peer_table = PeerTable(me, config, self._out)
        self._view_change = ViewChange(me, config, order, self._out)
        self._proposer = Proposer(me, config, self._peer_table, self._view_change)
        self._heartbeats = HeartbeatSender(me, config, self._peer_table, self._out)
        self._on_event: dict[type, Callable[[Any, float], None]] = {
            Tick: self._on_tick,
            MessageReceived: self._on_heard,
            LinkUp: self._on_up,
            LinkDown: self._on_down,
            SetPayload: self._on_payload,
            RefreshView: self._on_refresh,
            MachineSlept: self._on_slept,
            SuspectPeer: self._on_suspect,
            LeaveCluster: self._on_leave,
        }
        self._on_message: dict[type, Callable[[Peer, Any, float], None]] = {
            Heartbeat: self._on_heartbeat,
            Propose: self._on_propose,
            Status: self._on_status,
            Commit: self._on_commit,
            Ack: self._on_ack,
            Refuse: self._on_refuse,
            Goodbye: self._on_goodbye,
        }

    @property
    def view(self) -> View | None:
        """The view in force here; None before the first."""
        return self._view_change.view

    @property
    def is_leader(self) -> bool:
        """True if this node leads the view in force."""
        return self._view_change.is_leader

    @property
    def is_frozen(self) -> bool:
        """True if a later view than the one in force was promised."""
        return self._view_change.is_frozen

    @property
    def prefers(self) -> Member:
        """The node that this one wants as leader."""
        return self._proposer.prefers

    @property
    def health(self) -> HealthReport:
        """The health of all peers, as this node sees it now."""
        return HealthReport(self._peer_table.peers.values())

    def heard_by_peers(self) -> dict[NodeId, list[NodeId]]:
        """Return the nodes that peers hear and this node does not, with those peers.

        At most ``MAX_MEMBERS``; those that most peers hear come first.
        """
        present = [p for p in self._peer_table.present() if p.is_linked]
        known = {self.me.node, *(p.member.node for p in present)}
        found: dict[NodeId, list[NodeId]] = {}
        for peer in present:
            for node in sorted({m.node for m in peer.hears} - known):
                found.setdefault(node, []).append(peer.member.node)
        by_count = sorted(found.items(), key=lambda each: (-len(each[1]), each[0]))
        return dict(by_count[:MAX_MEMBERS])

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process one event at ``now_s`` of a monotonic clock; return the actions."""
        if self.has_left:
            return []
        self._wake(now_s)
        self._on_event[type(event)](event, now_s)
        if self._peer_table.is_changed or self._view_change.is_changed:
            self._decide(now_s)
        out = self._out[:]
        self._out.clear()
        return out

    def _wake(self, now_s: float) -> None:
        if self.wake_at_s == -inf:
            self._heartbeats.beat_at_s = now_s
            self._decide(now_s)
        # Overdue for longer than a heartbeat without any event: this process was
        # suspended, and must not blame the others for the silence.
        late_s = now_s - max(self.wake_at_s, self._stepped_at_s)
        if late_s > self.config.heartbeat_s:
            self._peer_table.shift(late_s)
            self._proposer.shift(late_s)
        self._stepped_at_s = now_s

    def _decide(self, now_s: float) -> None:
        """Decide again: a peer came, went, or reported something new."""
        self._peer_table.is_changed = self._view_change.is_changed = False
        self._proposer.decide(now_s, self._out)
        self._heartbeats.publish(self._proposer, self._view_change, now_s)
        self._plan()

    def _plan(self) -> None:
        """Compute when the next tick is due."""
        self.wake_at_s = min(
            self._heartbeats.beat_at_s,
            self._peer_table.due_at_s,
            self._proposer.propose_at_s,
            self._proposer.review_at_s,
            self._view_change.retry_at_s,
            self._view_change.answer_at_s,
        )

    # -- events ------------------------------------------------------------------------

    def _on_tick(self, _: Tick, now_s: float) -> None:
        self._peer_table.tick(now_s)
        if self._peer_table.is_changed or now_s >= self._proposer.review_at_s:
            self._decide(now_s)
        self._heartbeats.tick(now_s)
        self._view_change.tick(now_s, self._is_linked)
        if now_s >= self._proposer.propose_at_s:
            self._proposer.propose(now_s)
        self._plan()

    def _on_up(self, event: LinkUp, now_s: float) -> None:
        asked = self._peer_table.up(event.peer, now_s)
        for peer in (asked, self._peer_table.peers.get(event.peer)):
            if peer is not None:
                self._heartbeats.beat(peer, now_s)
        self._plan()

    def _on_down(self, event: LinkDown, now_s: float) -> None:
        gone = "its process ended" if event.gone else None
        self._peer_table.down(event.peer, now_s, gone=gone)
        self._plan()

    def _on_heard(self, event: MessageReceived, now_s: float) -> None:
        peer = self._peer_table.peers.get(event.peer)
        if peer is not None and peer.is_linked:
            self._on_message[type(event.message)](peer, event.message, now_s)

    def _on_payload(self, event: SetPayload, now_s: float) -> None:
        if len(event.data) > MAX_PAYLOAD_BYTES:
            text = f"payload of {len(event.data)} bytes, limit {MAX_PAYLOAD_BYTES}"
            raise ConfigError(f"membership: {text}")
        self._view_change.renew(event.data, event.view, now_s)
        self._plan()

    def _on_refresh(self, _: RefreshView, now_s: float) -> None:
        self._view_change.refreshes += 1
        self._decide(now_s)

    def _on_slept(self, _: MachineSlept, now_s: float) -> None:
        for peer in self._peer_table.peers.values():
            peer.told_at_s = -inf

    def _on_suspect(self, event: SuspectPeer, now_s: float) -> None:
        self._peer_table.suspect(event.peer, event.why)
        self._plan()

    def _on_leave(self, _: LeaveCluster, now_s: float) -> None:
        self._heartbeats.leave()
        self.has_left = True
        self.wake_at_s = inf

    # -- messages ----------------------------------------------------------------------

    def _on_heartbeat(self, peer: Peer, beat: Heartbeat, now_s: float) -> None:
        if not self._peer_table.beat(peer, beat, now_s):
            return
        report = beat.report
        self._view_change.note(report.promised)
        self._view_change.acknowledge(peer.member, report.view)
        self._heartbeats.refute(peer, report, now_s)
        for kept, refused in report.clones:
            if refused == self.me:
                self._out.append(KeyCloned(kept, refused))

    def _on_propose(self, peer: Peer, message: Propose, now_s: float) -> None:
        self._view_change.promise(peer.member, message, self._proposer.prefers, now_s)

    def _on_status(self, peer: Peer, message: Status, now_s: float) -> None:
        self._view_change.collect(peer.member, message, now_s)

    def _on_commit(self, peer: Peer, message: Commit, now_s: float) -> None:
        self._view_change.install(peer.member, message.view)

    def _on_ack(self, peer: Peer, message: Ack, now_s: float) -> None:
        self._view_change.acknowledge(peer.member, message.id)

    def _on_refuse(self, peer: Peer, message: Refuse, now_s: float) -> None:
        self._view_change.refused(message)

    def _on_goodbye(self, peer: Peer, _: Goodbye, now_s: float) -> None:
        self._peer_table.leave(peer, now_s)

    def _is_linked(self, member: Member) -> bool:
        peer = self._peer_table.peers.get(member)
        return peer is not None and peer.is_linked
