"""Proposer decides whom this node follows, which view it would lead, and when to
propose.
"""

from __future__ import annotations

from math import inf

from ringleader.membership.config import MembershipConfig
from ringleader.membership.election import choose_invitees, preferred_leader
from ringleader.membership.events import Action, Split
from ringleader.membership.member import Member, ViewId
from ringleader.membership.peer import Peer
from ringleader.membership.peer_table import PeerTable
from ringleader.membership.view_change import ViewChange


class Proposer:
    """Decisions of one node about leadership. Owned by its state machine."""

    def __init__(
        self,
        me: Member,
        config: MembershipConfig,
        peer_table: PeerTable,
        view_change: ViewChange,
    ) -> None:
        self.prefers = me
        self.invites: tuple[Member, ...] = ()
        self.propose_at_s = inf
        self.review_at_s = inf
        """When the patience with a conflict ends."""
        self._me = me
        self._config = config
        self._peer_table = peer_table
        self._view_change = view_change
        self._target: tuple[Member, ...] = ()
        self._target_since_s = -inf
        self._wanted_since_s = inf
        self._conflict_since_s = inf
        self._met: dict[Member, ViewId] = {}

    def decide(self, now_s: float, out: list[Action]) -> None:
        """Choose the preferred leader; if it is this node, choose the view to lead."""
        self.prefers = preferred_leader(self._me, self._peer_table.peers.values())
        if self.prefers == self._me:
            self._lead(now_s)
        else:
            self._follow()
        if self._view_change.is_leader and len(self._view_change.members) > 1:
            self._notice_split(out)

    def propose(self, now_s: float) -> None:
        """Propose the view that was scheduled."""
        self.propose_at_s = inf
        self._view_change.propose(self._target, now_s)
        self._schedule(now_s)

    def shift(self, gap_s: float) -> None:
        """Restart all settling times: this node was suspended for ``gap_s``."""
        self._target_since_s += gap_s
        self._wanted_since_s += gap_s
        self._conflict_since_s += gap_s
        self.propose_at_s += gap_s
        self.review_at_s += gap_s

    def _follow(self) -> None:
        self.invites = ()
        self._target = ()
        self._wanted_since_s = self._conflict_since_s = inf
        self.propose_at_s = self.review_at_s = inf
        self._view_change.follow()

    def _lead(self, now_s: float) -> None:
        self._invite(now_s)
        peers = self._peer_table.peers
        target = [self._me]
        for member in self.invites:
            report = peers[member].report
            if report is not None and report.prefers == self._me:
                target.append(member)
        wanted = tuple(sorted(target))
        if wanted != self._target:
            self._target = wanted
            self._target_since_s = now_s
        proposal = self._view_change.proposal
        if proposal is not None and not set(proposal.members) <= set(wanted):
            self._view_change.proposal = None  # a member is lost: it cannot finish
        self._schedule(now_s)

    def _invite(self, now_s: float) -> None:
        """Choose whom to lead. A conflict is given some time before seniority
        decides."""
        is_patient = now_s < self._conflict_since_s + self._config.patience_s
        peers = self._peer_table.peers.values()
        incumbents = self._view_change.members
        choice = choose_invitees(self._me, peers, incumbents, is_patient=is_patient)
        if not choice.is_conflict:
            self._conflict_since_s = inf
        elif self._conflict_since_s == inf:
            self._conflict_since_s = now_s
        self.invites = choice.invites
        over_s = self._conflict_since_s + self._config.patience_s
        self.review_at_s = over_s if now_s < over_s else inf

    def _schedule(self, now_s: float) -> None:
        """Set the time of the next proposal, if one is needed."""
        if not self._is_wanted():
            self._wanted_since_s = self.propose_at_s = inf
        elif self._view_change.proposal is not None:
            self.propose_at_s = inf  # one proposal at a time
        else:
            config = self._config
            self._wanted_since_s = min(self._wanted_since_s, now_s)
            since_s = max(self._target_since_s, self._wanted_since_s)
            members, target = set(self._view_change.members), set(self._target)
            if self._is_hopeful():
                wait_s = config.patience_s
            elif members < target:  # somebody joins; others may, too
                wait_s = config.debounce_s
            else:
                wait_s = config.lost_debounce_s
            latest_s = self._wanted_since_s + 3 * config.patience_s
            self.propose_at_s = min(since_s + wait_s, latest_s)

    def _is_wanted(self) -> bool:
        """Return whether the view in force differs from the target."""
        view_change = self._view_change
        if not view_change.is_leader or view_change.is_frozen:
            return True
        return view_change.members != self._target or self._is_stale()

    def _is_stale(self) -> bool:
        """Return whether a member has promised a later view, or asks for a refresh."""
        view_change = self._view_change
        done = view_change.refreshes_done
        if view_change.refreshes > done.get(self._me, 0):
            return True
        for member in self._target:
            peer = self._peer_table.peers.get(member)
            if peer is None or peer.report is None:
                continue
            if peer.report.promised > view_change.promised:
                return True
            if peer.report.refreshes > done.get(member, 0):
                return True
        return False

    def _is_hopeful(self) -> bool:
        """Return whether another node may join soon, so that waiting saves a view."""
        peers, target = self._peer_table.peers, self._target
        heard: set[Member] = set().union(
            *(peers[m].hears for m in target if m != self._me)
        )
        for member in heard.union(self._view_change.members).difference(target):
            peer = peers.get(member)
            if peer is None or not peer.is_present:
                if member in heard:  # a target member hears it: its link to us may
                    return True  # open soon, or it is dead and they will notice soon
            elif self._may_follow(peer):
                return True
        return False

    def _may_follow(self, peer: Peer) -> bool:
        """Return whether a present peer that does not follow us may still do so.

        It will not if it could be invited and is not: then it lost to a more senior
        node.
        """
        if not peer.is_mutual or peer.member in self.invites:
            return True
        return peer.report is not None and peer.report.prefers < self._me

    def _notice_split(self, out: list[Action]) -> None:
        """Report another leader with members of its own when it comes into sight."""
        met = {}
        for peer in self._peer_table.present():
            report = peer.report
            if report is None or report.num_members < 2:
                continue
            if report.view.leader == peer.member.node:
                met[peer.member] = report.view
                if self._met.get(peer.member) != report.view:
                    out.append(Split(peer.member, report.view))
        self._met = met
