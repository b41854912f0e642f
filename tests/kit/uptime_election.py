"""An election by uptime with known defects, which the membership simulator must find.

The longest-running node wins. A node that campaigns enters itself with its uptime of
that moment and its peers with the uptimes in their messages, which grow meanwhile. Once
it knows a candidate for every peer it declares its own vote the result. No node checks
whether the others voted alike, and the session number fences nothing. The rest here
(heartbeats, loss of the leader, views) is correct.
"""

from __future__ import annotations

from math import inf

import msgspec

from ringleader.membership.events import (
    Action,
    Event,
    FreezeView,
    InstallView,
    LinkDown,
    LinkUp,
    MessageReceived,
    Send,
    SetPayload,
)
from ringleader.membership.member import NO_VIEW, Member, View, ViewId

BEAT_S = 0.5
TIMEOUT_S = 3.0


class Vote(msgspec.Struct, frozen=True):
    """The election message."""

    seniority_s: float
    session: int
    vote_for: Member
    payload: bytes


class Candidate(msgspec.Struct):
    """State of one candidate, as seen by a node."""

    seniority_s: float
    last_seen_s: float
    payload: bytes


class UptimeElection:
    """A node of that election: idle, campaigning, then master or follower."""

    def __init__(self, me: Member) -> None:
        self.me = me
        self.wake_at_s = -inf
        self.view: View | None = None
        self.is_frozen = False
        self._born_s: float | None = None
        self._session = 0
        self._is_campaigning = False
        self._peers: set[Member] = set()
        self._candidates: dict[Member, Candidate] = {}
        self._payload = b""
        self._master: Member | None = None

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Take in one event."""
        if self._born_s is None:
            self._born_s = now_s
        out: list[Action] = []
        match event:
            case SetPayload(data=data):
                self._payload = data
            case LinkUp(peer=peer):
                self._peers.add(peer)
                self._start(now_s)
            case LinkDown(peer=peer):
                self._peers.discard(peer)
                self._candidates.pop(peer, None)
                if peer == self._master or (self.view and peer in self.view.members):
                    self._start(now_s)
            case MessageReceived(peer=peer, message=message):
                assert isinstance(message, Vote)
                self._process(peer, message, now_s)
            case _:
                self._tick(now_s, out)
        self._complete(out)
        return out

    def _seniority(self, now_s: float) -> float:
        assert self._born_s is not None
        return now_s - self._born_s

    def _start(self, now_s: float) -> None:
        self._session += 1
        self._is_campaigning = True
        mine = Candidate(self._seniority(now_s), now_s, self._payload)
        self._candidates = {self.me: mine}  # defects: frozen uptime, lost sender

    def _process(self, peer: Member, vote: Vote, now_s: float) -> None:
        self._session = max(self._session, vote.session)
        entry = Candidate(vote.seniority_s, now_s, vote.payload)
        self._candidates[peer] = entry
        if not self._is_campaigning and self._master is None:
            self._start(now_s)

    def _tick(self, now_s: float, out: list[Action]) -> None:
        self.wake_at_s = now_s + BEAT_S
        if not self._is_campaigning and self._master is None:
            self._start(now_s)
        old_s = now_s - TIMEOUT_S
        seen = [c.last_seen_s for c in self._candidates.values()]
        if self._is_campaigning and min(seen, default=inf) < old_s:
            self._start(now_s)  # defect: its own entry is never refreshed
        seniority_s = self._seniority(now_s)
        vote = Vote(seniority_s, self._session, self._vote(), self._payload)
        out += [Send(peer, vote) for peer in sorted(self._peers)]  # type: ignore[arg-type]

    def _vote(self) -> Member:
        if not self._candidates:
            return self.me
        by_seniority = [(c.seniority_s, m.node, m) for m, c in self._candidates.items()]
        return max(by_seniority)[2]

    def _complete(self, out: list[Action]) -> None:
        if not self._is_campaigning or not self._peers <= self._candidates.keys():
            return
        self._is_campaigning = False
        self._master = winner = self._vote()
        ring = tuple(sorted(self._candidates))
        last = NO_VIEW if self.view is None else self.view.id
        self._session = max(self._session, last.counter + 1)
        name = ViewId(self._session, winner.node, winner.incarnation)
        payloads = tuple(self._candidates[m].payload for m in ring)
        self.view = View(name, ring, payloads)
        out += [FreezeView(name, winner, self.view.members), InstallView(self.view)]
