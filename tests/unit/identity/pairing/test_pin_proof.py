"""A PIN vouches for a server's key, and for nothing else."""

from __future__ import annotations

import pytest

from ringleader.identity.pairing import pin_proof
from ringleader.identity.pairing.pin_proof import PinRequest
from ringleader.identity.secret_value import Secret

PIN = Secret("4711")
KEY, OTHER_KEY = bytes(range(16)), bytes(range(1, 17))
CONTENT = Secret(b"the code and a receipt")


def answered(question: PinRequest, pin: Secret[str] = PIN) -> tuple[bytes, bytes]:
    found = pin_proof.answer_pin_request(pin, KEY, question.element, CONTENT)
    assert found is not None
    return found


@pytest.mark.parametrize("pin", ["1", "4711", "correct horse", "пароль", "x" * 128])
def test_who_knows_the_pin_and_sees_the_key_opens_what_is_sealed(pin: str) -> None:
    question = PinRequest(Secret(pin), KEY)
    element, sealed = answered(question, Secret(pin))
    assert question.open(element, sealed) == CONTENT
    assert len(sealed) == len(CONTENT.reveal()) + pin_proof.TAG_BYTES
    assert CONTENT.reveal() not in sealed


@pytest.mark.parametrize("pin", ["4712", "471", "47111", " 4711", ""])
def test_another_pin_opens_nothing(pin: str) -> None:
    question = PinRequest(Secret(pin), KEY)
    assert question.open(*answered(question)) is None


def test_a_relay_that_shows_another_key_is_noticed() -> None:
    """It passes everything on; only the key that the worker sees is its own."""
    question = PinRequest(PIN, OTHER_KEY)
    assert question.open(*answered(question)) is None


def test_every_run_has_its_own_key() -> None:
    first, second = PinRequest(PIN, KEY), PinRequest(PIN, KEY)
    assert first.element != second.element
    assert second.open(*answered(first)) is None
    again = PinRequest(PIN, KEY)
    assert answered(again)[1] != answered(again)[1]


@pytest.mark.parametrize("which", range(4))
def test_a_changed_bit_opens_nothing(which: int) -> None:
    question = PinRequest(PIN, KEY)
    element, sealed = answered(question)
    changed = bytearray(sealed)
    changed[(0, 5, -16, -1)[which]] ^= 1
    assert question.open(element, bytes(changed)) is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"A",
        b"B" + bytes(32),
        b"A" + bytes(32),
        b"A" + b"\x01" + bytes(31),
        b"A" + b"\xff" * 32,
        b"A" + b"\x02" + bytes(31),
        b"A" * 34,
    ],
)
def test_garbage_gets_no_answer_and_opens_nothing(garbage: bytes) -> None:
    assert pin_proof.answer_pin_request(PIN, KEY, garbage, CONTENT) is None
    question = PinRequest(PIN, KEY)
    _, sealed = answered(question)
    assert question.open(garbage.replace(b"A", b"B", 1), sealed) is None


def test_a_question_is_no_answer_to_itself() -> None:
    question = PinRequest(PIN, KEY)
    _, sealed = answered(question)
    assert question.open(b"B" + question.element[1:], sealed) is None
    assert PinRequest(PIN, KEY).open(answered(question)[0], b"") is None
