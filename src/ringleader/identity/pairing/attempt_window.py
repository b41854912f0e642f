"""How long and how often a PIN may be tried: the budget of an invitation, pure.

Each run tests one PIN, so three runs with a new PIN after each failure let a guesser in
three times in a million. A run counts from the moment before anything leaves that
depends on the PIN, also if it is broken off; runs follow one another.
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
    """The state of an invitation. Whether a run is under way is its owner's business:
    the last permitted run has no attempts left behind it and goes on all the same."""

    until_s: float
    pin: Secret[str]
    attempts_left: int
    _new_pin: NewPin
    _has_joined: bool = False

    @classmethod
    def open_at(
        cls, now_s: float, new_pin: NewPin, *, length_s: float = WINDOW_S
    ) -> Self:
        """A new window with its first PIN."""
        return cls(now_s + length_s, new_pin(), ATTEMPTS, new_pin)

    def is_open(self, now_s: float) -> bool:
        """Whether another run may begin."""
        return self.outcome(now_s) is None

    def outcome(self, now_s: float) -> InvitationOutcome | None:
        """How it ended; None while another run may begin."""
        if self._has_joined:
            return InvitationOutcome.JOINED
        if self.attempts_left <= 0:
            return InvitationOutcome.EXHAUSTED
        return InvitationOutcome.EXPIRED if now_s >= self.until_s else None

    def begin(self, now_s: float) -> Secret[str] | None:
        """Spend an attempt and get the PIN of this run; None if there is none left."""
        if not self.is_open(now_s):
            return None
        self.attempts_left -= 1
        return self.pin

    def fail(self) -> None:
        """The run gave nothing: its PIN has been tested and is replaced."""
        self.pin = self._new_pin()

    def succeed(self) -> None:
        """Somebody is in: the PIN is worth nothing any more."""
        self._has_joined = True
        self.fail()
