"""Requests are parsed strictly, and only those of our own page are answered."""

from __future__ import annotations

import pytest

from ringleader.dashboard.http_message import (
    MAX_BODY_BYTES,
    MAX_HEADERS,
    BadRequest,
    check_source,
    event,
    parse_head,
    response,
)

ORIGINS = frozenset({"http://127.0.0.1:4711"})


def head(*lines: str, first: str = "GET / HTTP/1.1") -> bytes:
    return "\r\n".join([first, *lines, "", ""]).encode()


def refused(data: bytes) -> int:
    with pytest.raises(BadRequest) as caught:
        check_source(parse_head(data), ORIGINS)
    return caught.value.status


def test_a_request_is_parsed() -> None:
    found = parse_head(
        head("Host: a", "Authorization: Bearer k", first="GET /log?job=x HTTP/1.1")
    )
    assert (found.method, found.path, found.query) == ("GET", "/log", "job=x")
    assert found.key == "k"
    assert found.body_bytes == 0
    assert parse_head(head("Authorization: Basic k")).key == ""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (head(first="GET / HTTP/2"), 400),
        (head("no colon"), 400),
        (head(" folded: x"), 400),
        (head("Host: a", "Host: b"), 400),
        (head("X: \u00e4"), 400),
        (head("X: a\nY: b"), 400),
        (head(*(f"X{n}: y" for n in range(MAX_HEADERS + 1))), 431),
    ],
)
def test_a_malformed_request_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_head(data)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Content-Length: -1", 400),
        ("Content-Length: 1e3", 400),
        (f"Content-Length: {MAX_BODY_BYTES + 1}", 413),
        ("Transfer-Encoding: chunked", 411),
    ],
)
def test_the_length_of_a_body_is_bounded(line: str, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        _ = parse_head(head(line)).body_bytes
    assert caught.value.status == status


def test_only_our_own_page_may_ask() -> None:
    host = "Host: 127.0.0.1:4711"
    check_source(parse_head(head(host)), ORIGINS)
    post = "POST /stop HTTP/1.1"
    own = "Origin: http://127.0.0.1:4711"
    check_source(parse_head(head(host, own, first=post)), ORIGINS)
    assert refused(head()) == 403
    assert refused(head("Host: evil.example:4711")) == 403, "DNS rebinding"
    assert refused(head("Host: 127.0.0.1")) == 403
    assert refused(head(host, first=post)) == 403, "no Origin"
    assert refused(head(host, "Origin: null", first=post)) == 403
    assert refused(head(host, "Origin: http://evil.example", first=post)) == 403
    assert refused(head(host, "Origin: http://127.0.0.1:4712")) == 403
    assert refused(head(host, "Sec-Fetch-Site: cross-site")) == 403
    assert refused(head(host, own, "Sec-Fetch-Site: same-site", first=post)) == 403


def test_a_link_in_another_page_may_be_followed() -> None:
    lines = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
    check_source(parse_head(head("Host: 127.0.0.1:4711", *lines)), ORIGINS)


def test_responses_forbid_scripts_of_others_and_frames() -> None:
    found = response(200, "text/html", b"x").decode()
    policy = found.partition("Content-Security-Policy: ")[2].partition("\r\n")[0]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "Cache-Control: no-store" in found


def test_an_event_is_one_line_of_json() -> None:
    assert event("changes", {"a": "x\n\ny"}) == (
        b'event: changes\ndata: {"a":"x\\n\\ny"}\n\n'
    )
    missing = event("changes", {"a": float("nan")})
    assert missing == b'event: changes\ndata: {"a":null}\n\n', "JSON has no NaN"
