"""What a pairing costs, who gets it back, and how an address becomes a link."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from ringleader.identity.redacted import Secret
from ringleader.paramserver.protocol import join_link
from ringleader.paramserver.protocol.join_link import Link
from ringleader.paramserver.server.admission import PIN_ATTEMPTS, Answer, Entrance
from ringleader.paramserver.server.pin_pairing import KEPT_S, Pairing, Pairings
from ringleader.paramserver.worker.server_address import Place

SECRET = bytes(range(16))
CODE = Secret(join_link.encode(SECRET))


def pairings() -> tuple[Entrance, Pairings]:
    entrance = Entrance(Secret(SECRET), Secret("4711"), fingerprint=bytes(16))
    return entrance, Pairings(entrance, lambda request: None)


def begun(found: Pairings, number: int, now_s: float = 0.0) -> Pairing:
    pairing, is_new = found.begin(b"element %d" % number, now_s)
    assert is_new
    return pairing


def refusal(found: Pairings, now_s: float) -> tuple[int, str]:
    with pytest.raises(HTTPException) as caught:
        found.begin(b"another", now_s)
    detail: object = caught.value.detail
    assert isinstance(detail, dict)
    return caught.value.status_code, detail["error"]


def receipt_of(pairing: Pairing) -> str:
    return join_link.encode(pairing.receipt.reveal())


def test_pairings_and_wrong_pins_spend_one_budget() -> None:
    entrance, found = pairings()
    for i in range(PIN_ATTEMPTS - 1):
        begun(found, i)
    assert entrance.admit(None, "0000") is Answer.UNKNOWN
    assert entrance.admit(None, "4711") is Answer.LOCKED
    assert refusal(found, 1.0) == (429, "busy"), "some may still be redeemed"
    assert refusal(found, KEPT_S) == (403, "locked")
    assert entrance.admit(CODE.reveal(), None) is Answer.WELCOME


def test_a_join_with_its_receipt_gives_an_attempt_back_once() -> None:
    entrance, found = pairings()
    pairing = begun(found, 0)
    assert entrance.attempts_left == PIN_ATTEMPTS - 1
    for wrong in (None, "", "ü", "AAAA", join_link.encode(bytes(16)), "x" * 256):
        found.redeem(wrong, 1.0)
    assert entrance.attempts_left == PIN_ATTEMPTS - 1
    found.redeem(receipt_of(pairing), 1.0)
    found.redeem(receipt_of(pairing), 1.0)
    assert entrance.attempts_left == PIN_ATTEMPTS


def test_a_receipt_is_good_for_a_minute() -> None:
    entrance, found = pairings()
    early, late = begun(found, 0), begun(found, 1)
    found.redeem(receipt_of(early), KEPT_S - 0.1)
    found.redeem(receipt_of(late), KEPT_S)
    assert entrance.attempts_left == PIN_ATTEMPTS - 1


def test_thousands_of_friends_pair_one_after_another() -> None:
    entrance, found = pairings()
    for i in range(3000):
        found.redeem(receipt_of(begun(found, i)), 0.0)
    assert entrance.attempts_left == PIN_ATTEMPTS


def test_the_same_element_again_is_no_other_guess() -> None:
    entrance, found = pairings()
    first = begun(found, 0)
    again, is_new = found.begin(b"element 0", 1.0)
    assert (again is first, is_new) == (True, False)
    assert entrance.attempts_left == PIN_ATTEMPTS - 1
    later = begun(found, 0, KEPT_S)
    assert later.receipt != first.receipt
    assert entrance.attempts_left == PIN_ATTEMPTS - 2


def test_no_more_is_kept_than_there_are_attempts() -> None:
    _, found = pairings()
    for i in range(100):
        try:
            found.begin(b"%d" % i, 0.0)
        except HTTPException:
            assert i >= PIN_ATTEMPTS
    assert len(found._open) == PIN_ATTEMPTS


def test_an_address_stays_the_link_that_a_pin_made_of_it() -> None:
    place = Place(
        [
            "https://a:1",
            "https://b:2",
            join_link.build("https://a:1", SECRET, None).reveal(),
        ]
    )
    assert place.link.is_bare
    whole = Link("https://a:1", bytes(16), CODE)
    place.trust(whole)
    seen = [place.link]
    for _ in range(3):
        place.look_again()
        seen.append(place.link)
    assert seen[0] is seen[3] is whole
    assert seen[1] == Link("https://b:2")
    assert seen[2] == Link("https://a:1", None, CODE)
