"""The keys of sealed records: what opens, what does not, and that no nonce repeats."""

from __future__ import annotations

import copy
import hmac
import os
import pickle
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ringleader.errors import InternalError
from ringleader.identity import record_cipher
from ringleader.identity.record_cipher import RecordCipher
from ringleader.identity.secret_value import Secret
from ringleader.ids import NodeId
from ringleader.wire.sealed_record import SECRET_BYTES, TAG_BYTES, RecordForged

SECRET = bytes(range(32))
NODE = NodeId("a" * 52)


def cipher(
    secret: bytes = SECRET, sender: NodeId = NODE, *, is_dialer: bool = True
) -> RecordCipher:
    return RecordCipher(Secret(secret), sender=sender, is_dialer=is_dialer)


def seal(by: RecordCipher, data: bytes, header: bytes = b"head") -> bytes:
    into = memoryview(bytearray(len(data) + TAG_BYTES))
    by.seal(memoryview(data), header, into)
    return bytes(into)


def unseal(by: RecordCipher, record: bytes, header: bytes = b"head") -> bytes:
    into = memoryview(bytearray(b"?" * (len(record) - TAG_BYTES)))
    try:
        by.open(memoryview(record), header, into)
    except RecordForged:
        assert bytes(into) == bytes(len(into)), "forged bytes stay in the buffer"
        raise
    return bytes(into)


def test_records_open_in_their_order() -> None:
    left, right = cipher(), cipher()
    for data in (b"x", b"second", bytes(100_000)):
        assert unseal(right, seal(left, data)) == data


def test_the_keys_and_nonces_are_those_of_the_documentation() -> None:
    """Computed once more, from HMAC and AES-GCM alone."""

    def expand(key: bytes, info: bytes) -> bytes:
        first = hmac.new(key, info + b"\1", sha256).digest()
        return first + hmac.new(key, first + info + b"\2", sha256).digest()

    extracted = hmac.new(NODE.encode(), SECRET, sha256).digest()
    for is_dialer, side in ((True, b"dialer"), (False, b"listener")):
        both = expand(extracted, b"ringleader/v1/records/" + side)
        sealing = cipher(is_dialer=is_dialer)
        for number in range(3):
            expected = AESGCM(both[:32]).encrypt(
                number.to_bytes(12, "big"), b"data", b"head"
            )
            assert seal(sealing, b"data") == expected


def test_the_first_record_is_pinned() -> None:
    """A changed byte is a changed protocol, and needs another ALPN name."""
    assert seal(cipher(), b"data").hex() == "501b4150fa043ccc35bab4e8b4415ca5a02330dd"


def test_keys_change_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_cipher, "RECORDS_PER_KEY", 3)
    left, right = cipher(), cipher()
    for number in range(20):
        data = number.to_bytes(4, "big")
        assert unseal(right, seal(left, data)) == data


def test_no_nonce_is_used_twice_under_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[bytes, bytes]] = []

    class Spy:
        def __init__(self, key: bytes) -> None:
            self.key = key
            self.inner = AESGCM(key)

        def encrypt_into(
            self, nonce: bytes, data: memoryview, header: bytes, into: memoryview
        ) -> None:
            used.append((self.key, nonce))
            self.inner.encrypt_into(nonce, data, header, into)

    monkeypatch.setattr(record_cipher, "RECORDS_PER_KEY", 5)
    monkeypatch.setattr(record_cipher, "AESGCM", Spy)
    for is_dialer in (True, False):
        sealing = cipher(is_dialer=is_dialer)
        for _ in range(23):
            seal(sealing, b"the same data")
    assert len(set(used)) == len(used) == 46
    assert len({key for key, _ in used}) == 2 * 5, "a key per five records"


@pytest.mark.parametrize(
    "other",
    [
        cipher(bytes(32)),
        cipher(sender=NodeId("b" * 52)),
        cipher(is_dialer=False),
    ],
    ids=["secret", "node", "direction"],
)
def test_a_record_opens_only_with_the_keys_of_its_direction(
    other: RecordCipher,
) -> None:
    with pytest.raises(RecordForged):
        unseal(other, seal(cipher(), b"data"))


@pytest.mark.parametrize(
    ("good", "bad"),
    [([0], 0), ([], 1), ([0], 2), ([0, 1], 0)],
    ids=["repeated", "first left out", "second left out", "old"],
)
def test_a_record_opens_only_at_its_place(good: list[int], bad: int) -> None:
    left, right = cipher(), cipher()
    records = [seal(left, bytes([number]) * 50) for number in range(3)]
    for number in good:
        assert unseal(right, records[number]) == bytes([number]) * 50
    with pytest.raises(RecordForged):
        unseal(right, records[bad])


@pytest.mark.parametrize("at", range(4 + TAG_BYTES))
@pytest.mark.parametrize("bit", [1, 128])
def test_a_flipped_bit_does_not_open(at: int, bit: int) -> None:
    record = bytearray(seal(cipher(), b"data"))
    record[at] ^= bit
    with pytest.raises(RecordForged):
        unseal(cipher(), bytes(record))


def test_the_header_is_protected() -> None:
    with pytest.raises(RecordForged):
        unseal(cipher(), seal(cipher(), b"data", b"head"), b"tail")


def test_nothing_opens_after_a_forged_record() -> None:
    left, right = cipher(), cipher()
    first = seal(left, b"one")
    with pytest.raises(RecordForged):
        unseal(right, bytes(len(first)))
    with pytest.raises(RecordForged):
        unseal(right, first)


def test_every_record_under_a_new_key_opens_with_that_key_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first record after a change of keys, opened with the key before it."""
    monkeypatch.setattr(record_cipher, "RECORDS_PER_KEY", 1)
    sealing = cipher()
    records = [seal(sealing, b"data") for _ in range(3)]
    assert len({bytes(record) for record in records}) == 3
    monkeypatch.undo()
    opening = cipher()
    assert unseal(opening, records[0]) == b"data"
    opening._number = 0
    with pytest.raises(RecordForged):
        unseal(opening, records[1])


def test_a_fork_seals_nothing_with_the_keys_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealing = cipher()
    seal(sealing, b"data")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ConnectionAbortedError, match="a fork"):
        seal(sealing, b"data")


def test_secrets_are_new_and_not_shown() -> None:
    first, second = record_cipher.new_secret(), record_cipher.new_secret()
    assert first != second
    assert len(first.reveal()) == SECRET_BYTES
    made = cipher()
    shown = repr(made) + repr(made._chain) + str(first)
    assert SECRET.hex() not in shown
    assert repr(SECRET)[2:-1] not in shown
    assert repr(made._chain) == "<secret>"
    for take in (copy.copy, pickle.dumps):
        with pytest.raises((InternalError, TypeError)):
            take(made)
