"""Addresses as people write them."""

from __future__ import annotations

import pytest

from ringleader.errors import ConfigError
from ringleader.transport.tcp_socket import parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:29500", ("127.0.0.1", 29500)),
        ("  laptop.local:1 ", ("laptop.local", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%eth0]:4711", ("fe80::1%eth0", 4711)),
        ("::1:4711", ("::1", 4711)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "laptop",
        "laptop:",
        ":29500",
        "[]:29500",
        "laptop:port",
        "laptop:0",
        "laptop:65536",
        "laptop:-1",
        "laptop:+5",
        "laptop:1e3",
        "laptop:29500/",
        "laptop: 29500",
        "laptop:\u00b2",
        "laptop:\u0663",
        "laptop:" + 5000 * "9",
    ],
)
def test_anything_else_is_refused_with_the_text_and_the_form(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"write host:port, or \[ipv6\]:port"
    ) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)
