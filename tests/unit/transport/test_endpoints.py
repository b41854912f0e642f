"""What ranks tell each other through a store is bounded and checked when it is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.groups.store_rendezvous import (
    MAX_VALUE_BYTES,
    check_alike,
    look_up,
    publish,
    read,
)
from ringleader.ids import NodeId
from ringleader.transport.dialer import MAX_ADDRESSES, Endpoint

NODE = NodeId("a2" * 26)
HERE = ("10.0.0.1", 5)
CHANNEL = b" " + b"0" * 16
HEAD = b"10.0.0.1:5" + CHANNEL + b" "


def test_what_is_published_is_found() -> None:
    store = HashStore()
    publish(store, "0", ["10.0.0.1", "fd00::1", "pc.local"], 4711, NODE, 0xABC)
    assert look_up(store, "0", 0, Deadline.after(1.0)) == Endpoint(
        (("10.0.0.1", 4711), ("fd00::1", 4711), ("pc.local", 4711)), NODE, 0xABC
    )
    publish(store, "1", ["10.0.0.2"], 1, None)
    assert look_up(store, "1", 1, Deadline.after(1.0)) == Endpoint((("10.0.0.2", 1),))


def test_who_publishes_nothing_is_named() -> None:
    with pytest.raises(PeerUnreachable, match="did not join within") as caught:
        look_up(HashStore(), "3", 3, Deadline.after(0.1))
    assert caught.value.peer == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"" + CHANNEL, "published an address"),
        (b"10.0.0.1" + CHANNEL, "published an address"),
        (b"10.0.0.1:5," + CHANNEL, "published an address"),
        (b"10.0.0.1:99999" + CHANNEL, "published an address"),
        (b"\xff\xfe:5:" + CHANNEL, "published an address"),
        (b"10.0.0.1:5", "as its channel"),
        (b"10.0.0.1:5 " + b"a" * 15, "as its channel"),
        (b"10.0.0.1:5 " + b"a" * 17, "as its channel"),
        (HEAD + b"a" * 51, "as its node id"),
        (HEAD + b"A" * 52, "as its node id"),
        (HEAD + b"a" * 52 + b" more", "as its node id"),
        (b",".join([b"10.0.0.1:5"] * (MAX_ADDRESSES + 1)), "17 addresses, limit 16"),
        (b"x" * (MAX_VALUE_BYTES + 1) + b":5", f"limit {MAX_VALUE_BYTES}"),
    ],
)
def test_anything_else_names_the_rank_that_published_it(
    value: bytes, text: str
) -> None:
    with pytest.raises(ProtocolError, match=text) as caught:
        read(value, 3)
    assert caught.value.peer == 3
    assert len(str(caught.value)) < 500


@given(st.binary(max_size=200))
def test_no_value_does_anything_but_that(value: bytes) -> None:
    try:
        place = read(value, 1)
    except ProtocolError:
        return
    assert 1 <= len(place.addresses) <= MAX_ADDRESSES


@pytest.mark.parametrize(
    "hosts", [["10.0.0.1"] * (MAX_ADDRESSES + 1), ["a b"], ["x" * MAX_VALUE_BYTES]]
)
def test_we_do_not_publish_what_others_refuse_to_read(hosts: list[str]) -> None:
    with pytest.raises(ConfigError, match="addresses of this rank"):
        publish(HashStore(), "0", hosts, 5, NODE)


def test_ranks_that_do_not_encrypt_alike_are_named_before_they_connect() -> None:
    secure, plain = Endpoint((HERE,), NODE), Endpoint((HERE,))
    check_alike([secure, secure], encrypts=True)
    check_alike([plain, plain], encrypts=False)
    with pytest.raises(PeerUntrusted, match="CREDENTIALS set there") as missing:
        check_alike([secure, plain], encrypts=True)
    assert missing.value.peer == 1
    with pytest.raises(PeerRefused, match="CREDENTIALS set here") as surplus:
        check_alike([plain, plain, secure], encrypts=False)
    assert surplus.value.peer == 2
