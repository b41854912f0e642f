"""Which unfinished handshake makes room for the next connection."""

from __future__ import annotations

import socket

from ringleader.node.peering.acceptor import (
    MAX_HALF_OPEN,
    MAX_PER_ADDRESS,
    _PendingHandshake,
    to_drop,
)

SOCK = socket.socket()
SOCK.close()


def pending(address: str, *, is_silent: bool = True) -> _PendingHandshake:
    return _PendingHandshake(SOCK, address, is_silent)


def test_nothing_is_dropped_below_both_limits() -> None:
    crowd = [pending("a") for _ in range(MAX_PER_ADDRESS - 1)]
    assert to_drop(crowd, "a") is None
    assert to_drop([*crowd, pending("a")], "b") is None


def test_an_address_at_its_limit_displaces_its_own_oldest_silent_one() -> None:
    talking = [pending("a", is_silent=False) for _ in range(MAX_PER_ADDRESS - 2)]
    silent = [pending("a"), pending("a")]
    assert to_drop([pending("b"), *talking, *silent], "a") is silent[0]


def test_at_the_total_limit_the_busiest_address_pays() -> None:
    busy = [pending("busy") for _ in range(3)]
    others = [pending(str(number)) for number in range(MAX_HALF_OPEN - 3)]
    assert to_drop([*others, *busy], "new") is busy[0]


def test_a_silent_crowd_never_displaces_one_that_talks() -> None:
    talking = [pending("member", is_silent=False) for _ in range(5)]
    silent = [pending(str(number)) for number in range(MAX_HALF_OPEN - 5)]
    assert to_drop([*talking, *silent], "new") is silent[0]


def test_if_all_talk_one_of_the_busiest_address_goes() -> None:
    busy = [pending("busy", is_silent=False) for _ in range(2)]
    others = [
        pending(str(number), is_silent=False) for number in range(MAX_HALF_OPEN - 2)
    ]
    assert to_drop([*others, *busy], "new") is busy[0]
