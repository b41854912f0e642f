"""Admission, join links, rate limits and upload buffers."""

from __future__ import annotations

import pytest

from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol import join_link
from ringleader.paramserver.server.admission import (
    PIN_ATTEMPTS,
    Admission,
    AdmissionResult,
)
from ringleader.paramserver.server.http.client_network import is_loopback, network_of
from ringleader.paramserver.server.http.http_server import ListenAddress
from ringleader.paramserver.server.http.upload_buffers import UploadBuffers
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.rate_limit import MAX_KEYS, RateLimiter

SECRET = bytes(range(16))
KEY = UpdateKey(0, 0, 0)


def make_admission(pin: str | None = "4711") -> Admission:
    return Admission(Secret(SECRET), Secret(pin) if pin is not None else None)


def test_ten_thousand_guesses_end_at_the_budget_and_hurt_nobody_else() -> None:
    admission = make_admission("9999")
    token, _ = admission.issue_token("w1")
    answers = [admission.admit(None, f"{guess:04d}") for guess in range(10_000)]
    assert answers.count(AdmissionResult.ADMITTED) == 0
    assert answers.count(AdmissionResult.UNKNOWN) == PIN_ATTEMPTS
    assert admission.admit(None, "9999") is AdmissionResult.LOCKED
    assert admission.admit(join_link.encode(SECRET), None) is AdmissionResult.ADMITTED
    assert admission.worker_of(token) == "w1"


@pytest.mark.parametrize("pin", ["1", "4711", "correct horse", "пароль", "x" * 128])
def test_pins_of_any_length_work_and_cost_nothing_when_right(pin: str) -> None:
    admission = make_admission(pin)
    for _ in range(3 * PIN_ATTEMPTS):
        assert admission.admit(None, pin) is AdmissionResult.ADMITTED
    assert admission.pin_attempts_left == PIN_ATTEMPTS


@pytest.mark.parametrize(
    "wrong", ["", "AAAA", "ü", "AA=A", join_link.encode(bytes(16))]
)
def test_wrong_codes_are_refused_and_cost_no_budget(wrong: str) -> None:
    admission = make_admission()
    assert admission.admit(wrong, "4711") is AdmissionResult.UNKNOWN
    assert admission.pin_attempts_left == PIN_ATTEMPTS


def test_a_server_without_a_pin_accepts_none() -> None:
    admission = make_admission(None)
    for pin in ("", "None", "4711"):
        assert admission.admit(None, pin) is AdmissionResult.UNKNOWN
    assert admission.admit(None, None) is AdmissionResult.UNKNOWN
    with pytest.raises(ConfigError):
        make_admission("")


def test_a_new_token_replaces_the_old_one() -> None:
    admission = make_admission()
    old, _ = admission.issue_token("w1")
    new, digest = admission.issue_token("w1")
    assert admission.worker_of(old) is None
    assert admission.worker_of(new) == "w1"
    assert new not in str(admission.tokens)
    other = make_admission()
    other.add_token(digest, "w1")
    assert other.worker_of(new) == "w1"
    admission.revoke_tokens("w1")
    assert admission.worker_of(new) is None


def test_links_are_parsed_as_built() -> None:
    print_ = bytes(range(100, 116))
    whole = join_link.build("https://host:8000", SECRET, print_).reveal()
    assert len(whole.partition("#")[2]) == 44
    found = join_link.parse(f"  {whole}\n")
    assert (found.url, found.fingerprint) == ("https://host:8000", print_)
    assert found.code == Secret(join_link.encode(SECRET))
    plain = join_link.parse(
        join_link.build("http://h/some/path", SECRET, None).reveal()
    )
    assert (plain.url, plain.fingerprint) == ("http://h/some/path", None)
    assert join_link.parse("example.org:8000") == join_link.JoinLink(
        "https://example.org:8000"
    )
    assert "secret" in repr(found)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "ftp://h",
        "https://",
        "https://h:99999",
        "https://h:0",
        "https://h/#short",
        "https://h/?q=1",
        "https://user@h",
        "https://[::1",
    ],
)
def test_invalid_links_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        join_link.parse(wrong)


def test_a_pinned_link_is_not_for_plain_http() -> None:
    text = join_link.build("http://h", SECRET, bytes(16)).reveal()
    with pytest.raises(ConfigError, match="https"):
        join_link.parse(text)


def test_the_rate_limiter_allows_bursts_then_a_steady_rate() -> None:
    pace = RateLimiter(per_s=2.0, burst=5.0)
    assert [pace.wait_s("a", 0.0) for _ in range(6)] == [0] * 5 + [1]
    assert pace.wait_s("b", 0.0) == 0
    assert [pace.wait_s("a", 1.0) for _ in range(3)] == [0, 0, 1]
    for i in range(2 * MAX_KEYS):
        pace.wait_s(str(i), 2.0)
    assert len(pace._left) == MAX_KEYS


def test_uploads_are_one_per_worker_and_bounded_together() -> None:
    uploads = UploadBuffers(max_bytes=100)
    first = uploads.begin("w1", KEY, 60)
    assert first is not None
    assert first.add(b"x" * 20)
    assert uploads.resume("w1", UpdateKey(1, 0, 0)) is None
    assert uploads.begin("w2", KEY, 60) is None
    again = uploads.resume("w1", KEY)
    assert again is not None
    assert (again.filled, again.is_over, first.is_over) == (20, False, True)
    assert not first.add(b"x"), "it is another's now"
    assert not again.add(b"x" * 41)
    assert again.add(b"x" * 40)
    assert again.is_whole
    assert uploads.begin("w1", KEY, 80) is not None
    assert again.is_over
    assert uploads.num_bytes == 80
    uploads.sweep(lambda worker, key: False)
    assert uploads.num_bytes == 0


def test_a_body_takes_memory_until_it_is_processed() -> None:
    uploads = UploadBuffers(max_bytes=100)
    first = uploads.begin("w1", KEY, 60)
    assert first is not None
    first.add(b"x" * 60)
    body = uploads.take("w1")
    assert bytes(body) == b"x" * 60
    assert uploads.begin("w1", KEY, 60) is None, "the same again, while it is looked at"
    uploads.release(body)
    assert uploads.begin("w1", KEY, 60) is not None


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "::", "example.org"])
def test_an_open_server_listens_on_this_machine_only(host: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1"):
        ListenAddress(host=host).check(is_open=True)
    ListenAddress(host=host).check(is_open=False)
    for here in ("127.0.0.1", "::1", "localhost"):
        ListenAddress(host=here).check(is_open=True)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::1", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_limits_count_an_ipv6_network_as_one_address(host: str, network: str) -> None:
    assert network_of(host) == network
    assert is_loopback(network) == (host == "::1")
