"""HeartbeatSender sends the report of this node to all peers, in heartbeats."""

from __future__ import annotations

from math import inf

from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import Action, Health, Send
from ringleader.membership.member import MAX_MEMBERS, NO_VIEW, Member
from ringleader.membership.messages import Goodbye, Heartbeat, Report
from ringleader.membership.peer import Peer
from ringleader.membership.peer_table import PeerTable
from ringleader.membership.proposer import Proposer
from ringleader.membership.view_change import ViewChange


class HeartbeatSender:
    """Sends at every heartbeat interval, and at once when the report changes.

    Owned by a state machine; appends to ``out``.
    """

    def __init__(
        self,
        me: Member,
        config: MembershipConfig,
        peer_table: PeerTable,
        out: list[Action],
    ) -> None:
        self.report = Report(NO_VIEW, NO_VIEW, 0, me, (), (), (), (), 0)
        self.beat_at_s = -inf
        """When the next heartbeat is due."""
        self._me = me
        self._config = config
        self._peer_table = peer_table
        self._out = out
        self._sent_at_s = -inf
        self._number = 0
        self._refutation = 0

    def tick(self, now_s: float) -> None:
        """Send heartbeats if they are due."""
        if now_s >= self.beat_at_s:
            self._peer_table.count_misses(now_s)
            self._send_to_all(now_s)

    def publish(
        self, proposer: Proposer, view_change: ViewChange, now_s: float
    ) -> None:
        """Send the report to all peers if it has changed."""
        report = self._describe(proposer, view_change)
        if report == self.report:
            return
        is_promise = report.promised != self.report.promised
        self.report = report
        at_s = self._sent_at_s + self._config.gap_s
        if is_promise and self._config.answers_only_fresh:
            self._send_first(now_s)  # should this process end, the others know it
        elif now_s >= at_s:
            self._send_to_all(now_s)
        else:  # at most every gap_s, however fast reports change
            self.beat_at_s = min(self.beat_at_s, at_s)

    def refute(self, peer: Peer, report: Report, now_s: float) -> None:
        """Answer ``peer`` at once, and once, if it suspects us."""
        for suspect, refutation in report.suspects:
            if suspect == self._me and refutation >= self._refutation:
                self._refutation = refutation + 1
                self.beat(peer, now_s)

    def leave(self) -> None:
        """Send a goodbye to all peers."""
        for peer in self._peer_table.linked():
            self._out.append(Send(peer.member, Goodbye()))

    def beat(self, peer: Peer, now_s: float) -> None:
        """Send one heartbeat to one peer."""
        self._number += 1
        held_us = int((now_s - peer.echo_at_s) * 1e6) if peer.echo_us else 0
        # Plus one: a stamp of zero would mean none.
        stamp_us = int(now_s * 1e6) + 1
        beat = Heartbeat(
            self._number,
            stamp_us,
            peer.echo_us,
            held_us,
            self._refutation,
            self.report,
        )
        self._out.append(Send(peer.member, beat))

    def _send_to_all(self, now_s: float) -> None:
        self.beat_at_s = now_s + self._config.heartbeat_s
        self._sent_at_s = now_s
        for peer in self._peer_table.linked():
            self.beat(peer, now_s)

    def _send_first(self, now_s: float) -> None:
        """Send heartbeats before all that this step does, the freeze above all: its
        status may complete a view, of which then nobody else would know."""
        before, self._out[:] = self._out[:], []
        self._send_to_all(now_s)
        self._out += before

    def _describe(self, proposer: Proposer, view_change: ViewChange) -> Report:
        present = sorted(self._peer_table.present(), key=_seniority)[:MAX_MEMBERS]
        suspects = (p for p in present if p.health is Health.SUSPECT)
        return Report(
            view=view_change.view_id,
            promised=view_change.promised,
            num_members=len(view_change.members),
            prefers=proposer.prefers,
            hears=tuple([p.member for p in present]),
            invites=proposer.invites,
            suspects=tuple([(p.member, p.refutation) for p in suspects]),
            clones=self._peer_table.clones(),
            refreshes=view_change.refreshes,
        )


def _seniority(peer: Peer) -> Member:
    return peer.member
