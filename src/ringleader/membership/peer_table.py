"""PeerTable decides which peers are alive, and which life of a node counts.

unknown --heard--> healthy --silent, or link lost--> suspect --silent--> dead
                      ^----------------heard------------'                  |
                      '------heard, if its link is still open--------------'

A peer whose process is known to have ended is dead at once. A dead peer is shown for a
while and then forgotten.

Two lives with one key. A restarted node comes back with a new incarnation; its old life
is over, and usually its link broke. If the old life still seems healthy, the new one
waits for a moment, and the old one is asked for a sign of life. A heartbeat that echoes
a stamp of ours from after the new link opened proves that both live: the key was
copied. Then the life that started first is kept and the other one is refused, on every
node alike. No delay can make a restart look like a copy, because a dead process does
not answer new stamps.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import (
    GOODBYE,
    RESTARTED,
    Action,
    Health,
    HealthChanged,
    KeyCloned,
    PeerForgotten,
)
from ringleader.membership.member import MAX_MEMBERS, Member
from ringleader.membership.messages import Heartbeat
from ringleader.membership.peer import Peer
from ringleader.membership.probation import Probation

MAX_PEERS = 4 * MAX_MEMBERS
"""Lives remembered, the dead included. Beyond it new ones are ignored."""


class PeerTable:
    """The peers of one node, owned by its state machine; appends actions to ``out``."""

    def __init__(self, me: Member, config: MembershipConfig, out: list[Action]) -> None:
        self.me = me
        self.peers: dict[Member, Peer] = {}
        self.is_changed = False
        """A peer came, went or reported something new: decide again."""
        self.due_at_s = inf
        self._config = config
        self._out = out
        self._contests: list[Peer] = []
        self._departed: dict[Member, None] = {}
        self._probation = Probation(config.probation_s)

    def present(self) -> Iterator[Peer]:
        """Iterate over the peers that may be members, in no order."""
        return (p for p in self.peers.values() if p.is_present)

    def linked(self) -> Iterator[Peer]:
        """Iterate over the peers that have an open link."""
        return (p for p in self.peers.values() if p.is_linked)

    def clones(self) -> tuple[tuple[Member, Member], ...]:
        """Return (kept, refused) for every key that was copied."""
        pairs = [
            (p.refused_for, p.member)
            for p in self.peers.values()
            if p.refused_for is not None and p.member.node != self.me.node
        ]
        return tuple(sorted(pairs))[:MAX_MEMBERS]

    def up(self, member: Member, now_s: float) -> Peer | None:
        """Record an open link; return another life that must show that it is alive."""
        if member in self._departed:  # a link that was being opened meanwhile
            self._out.append(PeerForgotten(member))
            return None
        peer = self.peers.get(member)
        is_new = peer is None
        if peer is None:
            if len(self.peers) >= MAX_PEERS:
                return None
            peer = self.peers[member] = Peer(member, now_s)
        peer.is_linked = True
        peer.lost_at_s = inf
        if peer.health is Health.DEAD:
            peer.health = Health.UNKNOWN
            peer.last_heard_s = now_s
        self._bar(peer, now_s)
        self.due_at_s = min(self.due_at_s, peer.due_at_s(self._config))
        return self._claim(peer, now_s) if is_new else None

    def down(self, member: Member, now_s: float, *, gone: str | None) -> None:
        """Record a broken link; ``gone`` tells how we know that the process ended."""
        peer = self.peers.get(member)
        if peer is None:
            return
        if peer.is_linked:
            peer.is_linked = False
            peer.lost_at_s = now_s
        if not peer.is_admitted:
            self.forget(peer)
        elif peer.health is Health.DEAD:
            return
        elif gone is not None or self._is_contested(member):
            self._bury(peer, now_s, gone or RESTARTED, is_proven=gone is not None)
        elif peer.health is Health.HEALTHY:
            self._change(peer, Health.SUSPECT, "its link broke")
        self.due_at_s = min(self.due_at_s, peer.due_at_s(self._config))

    def suspect(self, member: Member, why: str) -> None:
        """Suspect a healthy peer; it hears of that and answers at once if it lives."""
        peer = self.peers.get(member)
        if peer is not None and peer.health is Health.HEALTHY:
            self._change(peer, Health.SUSPECT, why)
            self.due_at_s = min(self.due_at_s, peer.due_at_s(self._config))

    def leave(self, peer: Peer, now_s: float) -> None:
        """Forget a peer that said goodbye; this life of its node is over for good."""
        self.down(peer.member, now_s, gone=GOODBYE)
        self.forget(peer)
        self._departed[peer.member] = None
        if len(self._departed) > MAX_PEERS:
            del self._departed[next(iter(self._departed))]

    def beat(self, peer: Peer, beat: Heartbeat, now_s: float) -> bool:
        """Record a heartbeat; return whether it brought a new report."""
        if beat.number <= peer.number:
            return False
        peer.take(beat, now_s, longest_s=self._config.suspect_after_s)
        if peer.health is not Health.HEALTHY:
            self._change(peer, Health.HEALTHY, "heard")
        if self._contests:
            self._check_contests(peer, beat.echo_us)
        if beat.report is peer.report or beat.report == peer.report:
            return False
        peer.adopt(beat.report, self.me)
        self.is_changed = True
        return True

    def tick(self, now_s: float) -> None:
        """Update the health of all peers by the length of their silence."""
        config = self._config
        for peer in self._contests[:]:
            if peer.contested_s is not None:  # an earlier iteration may have settled it
                self._expire(peer, peer.contested_s, now_s)
        for peer in list(self.peers.values()):
            if now_s >= peer.due_at_s(config):
                self._judge(peer, now_s)
        times = [p.due_at_s(config) for p in self.peers.values()]
        since = [p.contested_s for p in self._contests if p.contested_s is not None]
        times += [start_s + config.suspect_after_s for start_s in since]
        self.due_at_s = min(times, default=inf)
        for peer in [p for p in self.peers.values() if p.is_barred]:
            self._bar(peer, now_s)
            self.is_changed |= not peer.is_barred

    def count_misses(self, now_s: float) -> None:
        """Count, once per heartbeat interval, the peers that are overdue."""
        late_s = now_s - 1.5 * self._config.heartbeat_s
        for peer in self.peers.values():
            if peer.last_heard_s < late_s and peer.health is not Health.DEAD:
                peer.miss()

    def shift(self, gap_s: float) -> None:
        """Ignore ``gap_s`` of silence, during which this node was suspended."""
        for peer in self.peers.values():
            peer.shift(gap_s)
        self.due_at_s += gap_s

    def forget(self, peer: Peer) -> None:
        """Delete the record of this life."""
        if self.peers.pop(peer.member, None) is None:
            return
        self._out.append(PeerForgotten(peer.member))
        was_holder = peer.is_admitted
        self._close_contest(peer)
        if was_holder:
            self._promote(peer.member)
        self.is_changed = True

    def _judge(self, peer: Peer, now_s: float) -> None:
        config = self._config
        if peer.health is Health.DEAD:
            self.forget(peer)
        elif now_s >= peer.dead_at_s(config):
            broke = now_s >= peer.lost_at_s + config.lost_after_s
            limit_s = config.lost_after_s if broke else config.dead_after_s
            what = "no new link" if broke else "silent"
            self._bury(peer, now_s, f"{what} for {limit_s:g} s", is_proven=False)
            self._probation.note(peer.member.node, now_s)
            self._bar(peer, now_s)
        elif peer.health is Health.HEALTHY:
            why = f"silent for {config.suspect_after_s:g} s"
            self._change(peer, Health.SUSPECT, why)

    def _bar(self, peer: Peer, now_s: float) -> None:
        until_s = self._probation.until_s(peer.member.node)
        peer.is_barred = now_s < until_s
        if peer.is_barred:
            self.due_at_s = min(self.due_at_s, until_s)

    def _change(self, peer: Peer, health: Health, why: str) -> None:
        self._announce(peer, HealthChanged(peer.member, health, why))

    def _announce(self, peer: Peer, change: HealthChanged) -> None:
        peer.health = change.health
        self._out.append(change)
        self.is_changed = True

    def _bury(self, peer: Peer, now_s: float, why: str, *, is_proven: bool) -> None:
        promised = peer.last_promise(now_s, self._config) if is_proven else None
        change = HealthChanged(peer.member, Health.DEAD, why, is_proven, promised)
        self._announce(peer, change)
        peer.died_at_s = now_s
        if self._heirs(peer.member):
            self.forget(peer)

    def _heirs(self, life: Member) -> list[Peer]:
        """Return other linked lives of the same node, the most senior first."""
        lives = (p for p in self.peers.values() if p.member.node == life.node)
        others = (p for p in lives if p.member != life and p.is_linked)
        return sorted(others, key=lambda p: p.member)

    def _is_contested(self, holder: Member) -> bool:
        return any(p.member.node == holder.node for p in self._contests)

    def _claim(self, peer: Peer, now_s: float) -> Peer | None:
        """Settle which life holds the key; return the holder if it must be asked."""
        node = peer.member.node
        if node == self.me.node:
            peer.refused_for = self.me
            pair = sorted((self.me, peer.member))
            self._out.append(KeyCloned(pair[0], pair[1]))
            return None
        holder = self._holder(peer)
        if holder is None:
            return None
        if holder.is_linked and holder.health is Health.HEALTHY:
            peer.contested_s = now_s
            self._contests.append(peer)
            self.due_at_s = min(self.due_at_s, now_s + self._config.suspect_after_s)
            return holder
        self._supersede(holder, now_s)
        return None

    def _holder(self, claimant: Peer) -> Peer | None:
        """Return the other life of the node that counts, or None."""
        node = claimant.member.node
        same = (p for p in self.peers.values() if p.member.node == node)
        return next((p for p in same if p is not claimant and p.is_admitted), None)

    def _supersede(self, holder: Peer, now_s: float) -> None:
        if holder.health is not Health.DEAD:
            self._bury(holder, now_s, RESTARTED, is_proven=False)
        if holder.member in self.peers:
            self.forget(holder)

    def _expire(self, peer: Peer, since_s: float, now_s: float) -> None:
        if now_s < since_s + self._config.suspect_after_s:
            return
        holder = self._holder(peer)
        if holder is not None:
            self._supersede(holder, now_s)

    def _check_contests(self, holder: Peer, echo_us: int) -> None:
        if not holder.is_admitted:
            return
        for peer in self._contests[:]:
            since_s = peer.contested_s
            is_same = peer.member.node == holder.member.node
            if since_s is None or not is_same or echo_us * 1e-6 <= since_s:
                continue
            self._close_contest(peer)
            kept, refused = sorted((holder, peer), key=lambda p: p.member)
            refused.refused_for = kept.member
            self._out.append(KeyCloned(kept.member, refused.member))
            self.is_changed = True

    def _close_contest(self, peer: Peer) -> None:
        if peer in self._contests:
            self._contests.remove(peer)
        peer.contested_s = None

    def _promote(self, former: Member) -> None:
        """Give the key of a life that is gone to the most senior of the others."""
        heirs = self._heirs(former)
        if not heirs or former.node == self.me.node:
            return
        self._close_contest(heirs[0])
        heirs[0].refused_for = None
        for peer in heirs[1:]:
            if peer.refused_for is not None:
                peer.refused_for = heirs[0].member
            elif peer.contested_s is not None:
                # It claimed the key from the former holder, so heartbeats of the new
                # one prove nothing against it. If it lives, it dials again.
                self.forget(peer)
