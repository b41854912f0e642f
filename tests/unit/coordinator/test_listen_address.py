"""Where a coordinator listens, and when it may do so without TLS."""

from __future__ import annotations

import socket

import pytest

from ringleader.coordinator.server.listen_address import ListenAddress
from ringleader.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:7070", "127.0.0.1:7070"),
        (":7070", "[::]:7070"),
        ("[::1]:0", "[::1]:0"),
        ("host.example:1", "host.example:1"),
    ],
)
def test_what_is_understood(text: str, shown: str) -> None:
    assert str(ListenAddress.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "host", "7070", "::1:7070", "h:65536", "h:x"])
def test_what_is_not(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        ListenAddress.parse(text)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:1", "127.8.0.1:1", "[::1]:1", "localhost:1"]
)
def test_plaintext_is_for_this_machine(text: str) -> None:
    ListenAddress.parse(text).check_plaintext(is_allowed=False)


@pytest.mark.parametrize(
    "text", [":1", "0.0.0.0:1", "[::]:1", "192.0.2.1:1", "no-such-name.invalid:1"]
)
def test_a_routable_address_needs_tls_or_the_users_word(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZF-9: a name that cannot be resolved now counts as routable."""
    real = socket.getaddrinfo

    def offline(host: str, *rest: object, **more: object) -> object:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return real(host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    address = ListenAddress.parse(text)
    with pytest.raises(ConfigError, match="--plaintext goes without"):
        address.check_plaintext(is_allowed=False)
    address.check_plaintext(is_allowed=True)


def test_a_name_with_one_routable_address_is_routable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(0, 0, 0, "", (host, 0)) for host in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert not ListenAddress("both", 1).is_loopback()


def test_the_address_for_workers() -> None:
    def shown(text: str) -> str:
        return ListenAddress.parse(text).for_workers("10.0.0.7", 5)

    assert shown(":1") == shown("0.0.0.0:1") == shown("[::]:1") == "10.0.0.7:5"
    assert shown("[::1]:1") == "[::1]:5"
