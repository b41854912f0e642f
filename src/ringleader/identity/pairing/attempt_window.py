"""AttemptWindow limits how long and how often a PIN may be tried. It does no I/O.

Each run tests one PIN, so three runs with a new PIN after each failure let a guesser in
three times in a million. A run counts from the moment before anything is sent that
depends on the PIN, even if it is broken off. Only one run is active at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Self

from ringleader.identity.secret_value import Secret

ATTEMPTS = 3
WINDOW_S = 300.0
"""Long enough to walk to the other machine, short enough not to be forgotten."""

NewPin = Callable[[], Secret[str]]


class InvitationOutcome(Enum):
    """How an invitation ended."""

    JOINED = "joined"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"


@dataclass(slots=True)
class AttemptWindow:
    """The budget of an invitation.

    Its owner knows whether a run is active: the last permitted run has no attempts left
    behind it and continues nevertheless.
    """

    until_s: float
    pin: Secret[str]
    attempts_left: int
    _new_pin: NewPin
    _has_joined: bool = False

    @classmethod
    def open_at(
        cls, now_s: float, new_pin: NewPin, *, length_s: float = WINDOW_S
    ) -> Self:
        """Return a new window with its first PIN."""
        return cls(now_s + length_s, new_pin(), ATTEMPTS, new_pin)

    def is_open(self, now_s: float) -> bool:
        """Return whether another run may begin."""
        return self.outcome(now_s) is None

    def outcome(self, now_s: float) -> InvitationOutcome | None:
        """Return how it ended; None while another run may begin."""
        if self._has_joined:
            return InvitationOutcome.JOINED
        if self.attempts_left <= 0:
            return InvitationOutcome.EXHAUSTED
        return InvitationOutcome.EXPIRED if now_s >= self.until_s else None

    def begin(self, now_s: float) -> Secret[str] | None:
        """Spend an attempt and return the PIN of this run; None if none is left."""
        if not self.is_open(now_s):
            return None
        self.attempts_left -= 1
        return self.pin

    def fail(self) -> None:
        """Replace the PIN after a failed run, which has tested it."""
        self.pin = self._new_pin()

    def succeed(self) -> None:
        """Close the window after a machine has joined."""
        self._has_joined = True
        self.fail()
