"""Peer is the record that a node keeps of one life of a peer."""

from __future__ import annotations

from math import inf

from ringleader.membership.config import ROUND_TRIP_WEIGHT, MembershipConfig
from ringleader.membership.events import Health
from ringleader.membership.member import Member, ViewId
from ringleader.membership.messages import Heartbeat, Report

_NOBODY: frozenset[Member] = frozenset()


class Peer:
    """One life of a peer: its link, its silence, its last report, its statistics."""

    __slots__ = (
        "contested_s",
        "died_at_s",
        "echo_at_s",
        "echo_us",
        "health",
        "hears",
        "hears_me",
        "invites_me",
        "is_barred",
        "is_linked",
        "last_heard_s",
        "latency_avg_s",
        "latency_last_s",
        "lost_at_s",
        "member",
        "num_heard",
        "num_missed",
        "num_missed_in_row",
        "number",
        "refused_for",
        "refutation",
        "report",
        "told_at_s",
    )

    def __init__(self, member: Member, now_s: float) -> None:
        self.member = member
        self.health = Health.UNKNOWN
        self.is_linked = False
        self.is_barred = False  # it was silent too often: it waits to be a member
        self.last_heard_s = now_s  # or when its link opened, before any message
        self.lost_at_s = inf  # when its link broke
        self.died_at_s = inf
        # Since when it claims the key of another life; None if it does not.
        self.contested_s: float | None = None
        self.refused_for: Member | None = None  # the life that keeps the key
        self.number = -1
        self.refutation = 0
        self.echo_us = 0
        self.echo_at_s = now_s
        self.report: Report | None = None
        # When it last told what it has promised. Unlike last_heard_s it does not move
        # when this node was suspended: the peer may have promised more meanwhile.
        self.told_at_s = -inf
        self.hears = _NOBODY
        self.hears_me = False
        self.invites_me = False
        self.latency_last_s: float | None = None
        self.latency_avg_s: float | None = None
        self.num_heard = 0
        self.num_missed = 0
        self.num_missed_in_row = 0

    @property
    def is_admitted(self) -> bool:
        """True if this life of its node counts: it is neither contested nor refused."""
        return self.contested_s is None and self.refused_for is None

    @property
    def is_present(self) -> bool:
        """True if it may be a member, as far as this node can tell."""
        live = self.health is Health.HEALTHY or self.health is Health.SUSPECT
        return live and self.contested_s is None and self.refused_for is None

    @property
    def is_mutual(self) -> bool:
        """True if each of the two hears the other."""
        return self.hears_me and self.is_present

    def dead_at_s(self, config: MembershipConfig) -> float:
        """Return when it counts as dead unless it is heard before."""
        return min(
            self.last_heard_s + config.dead_after_s,
            self.lost_at_s + config.lost_after_s,
        )

    def due_at_s(self, config: MembershipConfig) -> float:
        """Return when its health changes unless it is heard before."""
        if self.health is Health.HEALTHY:
            return self.last_heard_s + config.suspect_after_s
        if self.health is Health.DEAD:
            return self.died_at_s + config.forget_after_s
        return self.dead_at_s(config)

    def take(self, beat: Heartbeat, now_s: float, *, longest_s: float) -> None:
        """Record a fresh heartbeat, except for its report.

        A round trip longer than ``longest_s`` is not measured: one of the two was
        suspended.
        """
        self.number = beat.number
        self.last_heard_s = self.told_at_s = now_s
        self.num_heard += 1
        self.num_missed_in_row = 0
        self.refutation = max(self.refutation, beat.refutation)
        self.echo_us = beat.sent_us
        self.echo_at_s = now_s
        if beat.echo_us:
            round_trip_s = now_s - (beat.echo_us + beat.held_us) * 1e-6
            if 0 <= round_trip_s <= longest_s:
                self._measure(round_trip_s)

    def last_promise(self, now_s: float, config: MembershipConfig) -> ViewId | None:
        """Return what it had promised, if it told so until shortly before now."""
        is_fresh = now_s - self.told_at_s < config.suspect_after_s
        return self.report.promised if self.report is not None and is_fresh else None

    def adopt(self, report: Report, me: Member) -> None:
        """Store the report that it sent."""
        self.report = report
        self.hears = frozenset(report.hears)
        self.hears_me = me in self.hears
        self.invites_me = report.prefers == self.member and me in report.invites

    def miss(self) -> None:
        """Count a heartbeat that did not arrive."""
        self.num_missed += 1
        self.num_missed_in_row += 1

    def shift(self, gap_s: float) -> None:
        """Ignore ``gap_s`` of silence, during which this node was suspended."""
        self.last_heard_s += gap_s
        self.lost_at_s += gap_s
        if self.contested_s is not None:
            self.contested_s += gap_s

    def _measure(self, round_trip_s: float) -> None:
        average_s = self.latency_avg_s
        self.latency_last_s = round_trip_s
        if average_s is None:
            self.latency_avg_s = round_trip_s
        else:
            self.latency_avg_s = (
                ROUND_TRIP_WEIGHT * round_trip_s + (1 - ROUND_TRIP_WEIGHT) * average_s
            )
