"""Server names: one MAC, one use."""

from __future__ import annotations

import base64
import re
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.identity.certificates.sni_auth import (
    MAX_NONCES,
    SUFFIX,
    SniVerifier,
    new_server_name,
)
from ringleader.identity.secret_value import Secret

KEY = Secret(b"k" * 32)


def test_a_server_name_is_a_host_name() -> None:
    name = new_server_name(KEY, "")
    assert re.fullmatch(r"[a-z2-7]{52}\.k\.internal", name)
    assert len(name) == 63
    assert new_server_name(KEY, "") != name


def test_a_server_name_is_accepted_once() -> None:
    verifier = SniVerifier(KEY)
    name = new_server_name(KEY, "")
    assert verifier.admits(name)
    assert not verifier.admits(name), "it was recorded and replayed"
    assert verifier.admits(new_server_name(KEY, ""))


def test_bits_that_mean_nothing_do_not_make_a_new_server_name() -> None:
    """52 characters hold four bits more than nonce and MAC have."""
    verifier = SniVerifier(KEY)
    name = new_server_name(KEY, "")
    assert verifier.admits(name)
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    for letter in alphabet:
        assert not verifier.admits(name[:51] + letter + SUFFIX)
    assert not verifier.admits(name.upper())
    assert not verifier.admits(name.removesuffix(SUFFIX).upper() + SUFFIX)


def test_another_secret_is_refused() -> None:
    assert not SniVerifier(KEY).admits(new_server_name(Secret(b"o" * 32), ""))


def test_a_label_is_part_of_the_server_name() -> None:
    verifier = SniVerifier(KEY)
    assert not verifier.admits(new_server_name(KEY, "here")), (
        "not announced under that label"
    )
    verifier.set_labels("here", "there")
    assert verifier.admits(new_server_name(KEY, "here"))
    assert verifier.admits(new_server_name(KEY, "there"))
    assert verifier.admits(new_server_name(KEY, "")), "whoever knows only our address"
    verifier.set_labels("elsewhere")
    assert not verifier.admits(new_server_name(KEY, "here"))


def test_a_changed_server_name_is_refused() -> None:
    raw = bytearray(base64.b32decode(new_server_name(KEY, "")[:52].upper() + "===="))
    verifier = SniVerifier(KEY)
    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        text = base64.b32encode(raw).decode().rstrip("=").lower()
        assert not verifier.admits(text + SUFFIX), f"bit {bit}"
        raw[bit // 8] ^= 1 << bit % 8


@settings(deadline=None)
@given(st.one_of(st.none(), st.text(max_size=80), st.from_regex(r"[a-z2-7]{52}")))
def test_what_is_no_server_name_is_refused(name: str | None) -> None:
    assert not SniVerifier(KEY).admits(name)
    assert not SniVerifier(KEY).admits(f"{name}{SUFFIX}")


def test_strangers_do_not_push_out_what_is_remembered() -> None:
    verifier = SniVerifier(KEY)
    name = new_server_name(KEY, "")
    assert verifier.admits(name)
    for number in range(MAX_NONCES + 10):
        assert not verifier.admits(f"{number:052}".replace("0", "a") + SUFFIX)
    assert not verifier.admits(name)


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    verifier = SniVerifier(KEY)
    names = [new_server_name(KEY, "") for _ in range(MAX_NONCES + 1)]
    assert all(verifier.admits(name) for name in names)
    assert not verifier.admits(names[1])
    assert verifier.admits(names[0]), "forgotten"


def test_a_server_name_used_by_many_threads_is_accepted_once() -> None:
    verifier = SniVerifier(KEY)
    names = [new_server_name(KEY, "") for _ in range(200)]
    admitted: list[str] = []

    def hear() -> None:
        admitted.extend(name for name in names if verifier.admits(name))

    threads = [threading.Thread(target=hear, name=f"hear {i}") for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(admitted) == sorted(names)
