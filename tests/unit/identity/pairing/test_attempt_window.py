"""The budget of an invitation: three tries, a new PIN after each, five minutes."""

from __future__ import annotations

from collections import Counter

from ringleader.identity.pairing.attempt_window import (
    ATTEMPTS,
    WINDOW_S,
    AttemptWindow,
    InvitationOutcome,
)
from ringleader.identity.pairing.join_client import new_pin
from ringleader.identity.secret_value import Secret


def opened() -> AttemptWindow:
    pins = iter(range(100))
    return AttemptWindow.open_at(1000.0, lambda: Secret(f"{next(pins):06}"))


def test_a_window_opens_with_three_attempts_for_five_minutes() -> None:
    window = opened()
    assert (window.attempts_left, window.pin.reveal()) == (3, "000000")
    assert window.is_open(1000.0 + WINDOW_S - 0.001)
    assert window.outcome(1000.0 + WINDOW_S) is InvitationOutcome.EXPIRED
    assert window.begin(1000.0 + WINDOW_S) is None
    assert window.attempts_left == 3


def test_an_attempt_is_spent_when_it_begins() -> None:
    window = opened()
    pin = window.begin(1001.0)
    assert pin is not None
    assert pin.reveal() == "000000"
    assert window.attempts_left == 2


def test_every_failure_changes_the_pin_and_the_third_is_the_last() -> None:
    window = opened()
    seen = []
    for _ in range(ATTEMPTS):
        pin = window.begin(1001.0)
        assert pin is not None
        seen.append(pin.reveal())
        window.fail()
    assert seen == ["000000", "000001", "000002"]
    assert window.begin(1001.0) is None
    assert window.outcome(1001.0) is InvitationOutcome.EXHAUSTED


def test_the_last_attempt_may_still_succeed() -> None:
    window = opened()
    for _ in range(ATTEMPTS - 1):
        window.begin(1001.0)
        window.fail()
    assert window.begin(1001.0) is not None
    assert not window.is_open(1001.0), "no other run may begin beside it"
    window.succeed()
    assert window.outcome(1001.0) is InvitationOutcome.JOINED


def test_a_success_ends_it_and_forgets_the_pin() -> None:
    window = opened()
    pin = window.begin(1001.0)
    window.succeed()
    assert window.begin(1001.0) is None
    assert window.pin != pin
    assert window.outcome(99_999.0) is InvitationOutcome.JOINED


def test_pins_have_six_digits_and_all_are_as_likely() -> None:
    pins = [new_pin().reveal() for _ in range(4000)]
    assert all(len(pin) == 6 and pin.isdigit() for pin in pins)
    first = Counter(pin[0] for pin in pins)
    assert len(first) == 10, "also those that begin with zero"
    assert max(first.values()) < 2 * 4000 / 10
