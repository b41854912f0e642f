"""MembershipConfig holds the times of failure detection, with profiles for networks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Self

from ringleader.errors import ConfigError

ROUND_TRIP_WEIGHT = 0.2
"""Weight of the newest round trip in the average, about the last ten count."""

TRAINING_SILENCE_S = 3.75
"""Silence after which a training run goes on without a member, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """Times of heartbeats, suspicion and views. The defaults fit a wired LAN."""

    heartbeat_s: float = 0.5
    """Time between two heartbeats to a peer. Shorter finds failures sooner and costs
    airtime. A changed report is sent at once and does not wait for it."""

    suspect_after_s: float = 1.5
    """Silence after which a peer is suspected and told so. It stays a member."""

    dead_after_s: float = 3.5
    """Silence after which the others go on without a peer. Longer than a process
    that is stopped for two seconds needs, shorter than the five a cut cable may
    take."""

    lost_after_s: float = 1.5
    """The same after its link broke: a live peer dials again soon, a dead one never."""

    debounce_s: float = 0.3
    """How long the set of members must be unchanged before a view is proposed, so
    that machines switched on together form one view, not one each."""

    loss_debounce_s: float | None = None
    """The same if nobody joins: a member was lost, or asks for a new view. None:
    ``debounce_s``. Shorter where nobody can work without the next view."""

    patience_s: float = 1.5
    """How long a leader waits for members of its view that are present but out of
    step: they have yet to notice a death, or to open a link."""

    retry_s: float = 0.3
    """Time until an unanswered message is sent again; doubles up to eight times
    that."""

    payload_wait_s: float = 0.0
    """How long a frozen node waits for a fresh payload (``SetPayload``) before it
    answers with the one it has. Zero: it answers at once. Infinite: it answers only
    with a payload that was made for the proposed view."""

    report_gap_s: float | None = None
    """The shortest time between two heartbeats while reports change fast; None: a tenth
    of ``heartbeat_s``."""

    probation_s: float = 0.0
    """How long a node that was silent until it was left out waits before it is a member
    again. Doubles with each time it happened in the last ten minutes."""

    forget_after_s: float = 60.0
    """How long a dead peer is still shown."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.suspect_after_s < self.dead_after_s:
            order = "0 < heartbeat_s < suspect_after_s < dead_after_s"
            raise ConfigError(f"membership: need {order}, got {self}")
        if not 0 < self.lost_after_s <= self.dead_after_s:
            raise ConfigError(
                f"membership: need 0 < lost_after_s <= dead_after_s, got {self}"
            )
        if not 0 < self.debounce_s <= self.patience_s:
            raise ConfigError(
                f"membership: need 0 < debounce_s <= patience_s, got {self}"
            )
        if not (self.retry_s > 0 and self.forget_after_s > 0):
            raise ConfigError(
                f"membership: retry_s and forget_after_s must be > 0, got {self}"
            )
        if not (
            0 <= self.payload_wait_s < self.dead_after_s or self.answers_only_fresh
        ):
            raise ConfigError(
                f"membership: need 0 <= payload_wait_s < dead_after_s, got {self}"
            )
        if not (0 < self.lost_debounce_s <= self.debounce_s and self.probation_s >= 0):
            needed = "0 < loss_debounce_s <= debounce_s and probation_s >= 0"
            raise ConfigError(f"membership: need {needed}, got {self}")
        if not 0 < self.gap_s <= self.heartbeat_s:
            raise ConfigError(
                f"membership: need 0 < report_gap_s <= heartbeat_s, got {self}"
            )

    @property
    def gap_s(self) -> float:
        """The shortest time between two heartbeats while reports change fast."""
        return self.heartbeat_s / 10 if self.report_gap_s is None else self.report_gap_s

    @property
    def lost_debounce_s(self) -> float:
        """How long the set of members must be unchanged if nobody joins."""
        wait_s = self.loss_debounce_s
        return self.debounce_s if wait_s is None else wait_s

    @property
    def answers_only_fresh(self) -> bool:
        """True if a frozen node never answers with a payload of before the freeze."""
        return self.payload_wait_s == inf

    @classmethod
    def for_lan(cls) -> Self:
        """Return the default: cables and a switch."""
        return cls()

    @classmethod
    def for_loopback(cls) -> Self:
        """Return times for one host: nothing is lost, only processes end."""
        return cls(
            heartbeat_s=0.2,
            suspect_after_s=1.0,
            dead_after_s=2.5,
            lost_after_s=0.5,
            debounce_s=0.1,
            patience_s=0.5,
            retry_s=0.1,
        )

    @classmethod
    def for_training(cls, silence_s: float = 0.0) -> Self:
        """Return times for the processes of one training run, which cannot go on until
        the next view is there.

        A process that ends is left out within milliseconds, a silent machine after
        3.5 to 4.5 s; one that is stopped for two seconds stays. A longer ``silence_s``
        is waited for: machines on Wi-Fi are silent for seconds while they roam.
        """
        return cls(
            heartbeat_s=0.25,
            suspect_after_s=1.0,
            dead_after_s=max(TRAINING_SILENCE_S, silence_s),
            lost_after_s=1.0,
            debounce_s=0.3,
            loss_debounce_s=0.004,
            patience_s=1.5,
            retry_s=0.1,
            payload_wait_s=inf,
            report_gap_s=0.001,
            probation_s=1.0,
        )

    @classmethod
    def for_wifi(cls) -> Self:
        """Return times for Wi-Fi, which can be silent for seconds."""
        return cls(
            heartbeat_s=1.0,
            suspect_after_s=4.0,
            dead_after_s=12.0,
            lost_after_s=5.0,
            debounce_s=0.6,
            patience_s=4.0,
            retry_s=0.6,
        )

    @classmethod
    def for_wan(cls) -> Self:
        """Return times for the internet: long round trips, pauses of many seconds."""
        return cls(
            heartbeat_s=2.0,
            suspect_after_s=8.0,
            dead_after_s=30.0,
            lost_after_s=15.0,
            debounce_s=1.5,
            patience_s=10.0,
            retry_s=1.5,
        )

    @classmethod
    def low_latency(cls) -> Self:
        """Return times that find failures soon: a heartbeat every 0.5 s, suspect
        after 2 s, dead after 4 s."""
        return cls(heartbeat_s=0.5, suspect_after_s=2.0, dead_after_s=4.0)

    @classmethod
    def high_latency(cls) -> Self:
        """Return times for slow links: a heartbeat every 10 s, suspect after 30 s,
        dead after 50 s."""
        return cls(
            heartbeat_s=10.0,
            suspect_after_s=30.0,
            dead_after_s=50.0,
            lost_after_s=30.0,
            debounce_s=2.0,
            patience_s=20.0,
            retry_s=5.0,
        )
