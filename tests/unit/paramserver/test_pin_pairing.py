"""Pairing by PIN: attempts that it spends and refunds, and the link it gives."""

from __future__ import annotations

import pytest

from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol import join_link
from ringleader.paramserver.protocol.join_link import JoinLink
from ringleader.paramserver.server.admission import (
    PIN_ATTEMPTS,
    Admission,
    AdmissionResult,
)
from ringleader.paramserver.server.http.pin_pairing import (
    PENDING_S,
    PendingPairing,
    PinPairings,
)
from ringleader.paramserver.server.http.responses import Refusal
from ringleader.paramserver.worker.server_address import ServerAddress

SECRET = bytes(range(16))
CODE = Secret(join_link.encode(SECRET))


def pairings() -> tuple[Admission, PinPairings]:
    admission = Admission(Secret(SECRET), Secret("4711"), fingerprint=bytes(16))
    return admission, PinPairings(admission, lambda request: None)


def begun(found: PinPairings, number: int, now_s: float = 0.0) -> PendingPairing:
    pairing, is_new = found.begin(b"element %d" % number, now_s)
    assert is_new
    return pairing


def refusal(found: PinPairings, now_s: float) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        found.begin(b"another", now_s)
    return caught.value.status_code, caught.value.answer.error


def receipt_of(pairing: PendingPairing) -> str:
    return join_link.encode(pairing.receipt.reveal())


def test_pairings_and_wrong_pins_spend_one_budget() -> None:
    admission, found = pairings()
    for i in range(PIN_ATTEMPTS - 1):
        begun(found, i)
    assert admission.admit(None, "0000") is AdmissionResult.UNKNOWN
    assert admission.admit(None, "4711") is AdmissionResult.LOCKED
    assert refusal(found, 1.0) == (429, "busy"), "some may still be redeemed"
    assert refusal(found, PENDING_S) == (403, "locked")
    assert admission.admit(CODE.reveal(), None) is AdmissionResult.ADMITTED


def test_a_join_with_its_receipt_refunds_one_attempt() -> None:
    admission, found = pairings()
    pairing = begun(found, 0)
    assert admission.pin_attempts_left == PIN_ATTEMPTS - 1
    for wrong in (None, "", "ü", "AAAA", join_link.encode(bytes(16)), "x" * 256):
        found.redeem(wrong, 1.0)
    assert admission.pin_attempts_left == PIN_ATTEMPTS - 1
    found.redeem(receipt_of(pairing), 1.0)
    found.redeem(receipt_of(pairing), 1.0)
    assert admission.pin_attempts_left == PIN_ATTEMPTS


def test_a_receipt_is_good_for_a_minute() -> None:
    admission, found = pairings()
    early, late = begun(found, 0), begun(found, 1)
    found.redeem(receipt_of(early), PENDING_S - 0.1)
    found.redeem(receipt_of(late), PENDING_S)
    assert admission.pin_attempts_left == PIN_ATTEMPTS - 1


def test_thousands_of_workers_pair_one_after_another() -> None:
    admission, found = pairings()
    for i in range(3000):
        found.redeem(receipt_of(begun(found, i)), 0.0)
    assert admission.pin_attempts_left == PIN_ATTEMPTS


def test_a_repeated_element_costs_no_attempt() -> None:
    admission, found = pairings()
    first = begun(found, 0)
    again, is_new = found.begin(b"element 0", 1.0)
    assert (again is first, is_new) == (True, False)
    assert admission.pin_attempts_left == PIN_ATTEMPTS - 1
    later = begun(found, 0, PENDING_S)
    assert later.receipt != first.receipt
    assert admission.pin_attempts_left == PIN_ATTEMPTS - 2


def test_no_more_is_kept_than_there_are_attempts() -> None:
    _, found = pairings()
    for i in range(100):
        try:
            found.begin(b"%d" % i, 0.0)
        except Refusal:
            assert i >= PIN_ATTEMPTS
    assert len(found._open) == PIN_ATTEMPTS


def test_an_address_stays_the_link_that_a_pin_made_of_it() -> None:
    address = ServerAddress.from_links(
        [
            "https://a:1",
            "https://b:2",
            join_link.build("https://a:1", SECRET, None).reveal(),
        ]
    )
    assert address.link.is_bare
    whole = JoinLink("https://a:1", bytes(16), CODE)
    address.use_paired_link(whole)
    seen = [address.link]
    for _ in range(3):
        address.try_next()
        seen.append(address.link)
    assert seen[0] is seen[3] is whole
    assert seen[1] == JoinLink("https://b:2")
    assert seen[2] == JoinLink("https://a:1", None, CODE)
