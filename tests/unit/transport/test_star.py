"""Pure parts of a star: packets, addresses, and what happens without gRPC."""

from __future__ import annotations

import pytest

from ringleader.errors import ConfigError, PeerLost
from ringleader.transport.star import star
from ringleader.transport.star.channel import host_of
from ringleader.transport.star.pump import LOST, MAX_DATA_BYTES, data_of, reason_of
from ringleader.transport.star.stream_socket import explain, stream_socket_pair
from ringleader.transport.star.v1 import star_pb2 as messages


def test_only_data_of_a_bounded_length_is_taken() -> None:
    assert data_of(messages.Packet(data=b"abc")) == b"abc"
    assert data_of(messages.Packet(data=bytes(MAX_DATA_BYTES))) is not None
    for other in (
        messages.Packet(data=bytes(MAX_DATA_BYTES + 1)),
        messages.Packet(end=messages.End()),
        messages.Packet(),
        None,
    ):
        assert data_of(other) is None


def test_a_stream_without_an_end_was_lost() -> None:
    assert reason_of(messages.Packet(end=messages.End())) == ""
    assert reason_of(messages.Packet(end=messages.End(reason="why"))) == "why"
    assert reason_of(messages.Packet(end=messages.End(reason="x" * 9999))) == "x" * 500
    assert reason_of(messages.Packet(accept=messages.Accept())) == LOST
    assert reason_of(None) == LOST


def test_errors_name_the_rank_that_was_lost() -> None:
    sock, other = stream_socket_pair()
    with sock, other:
        lost = PeerLost(2, "closed the connection")
        assert explain(sock, lost) is lost
        sock.reason = "it was killed"
        assert str(explain(sock, lost)) == "rank 2: it was killed"
        sock.is_root_lost, sock.root = True, 1
        assert str(explain(sock, lost)) == "rank 1: it was killed"


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:41000", "10.0.0.7"),
        ("ipv6:[::1]:41000", "::1"),
        ("ipv6:%5Bfe80::1%5D:41000", "fe80::1"),
    ],
)
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_without_grpc_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(star, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ringleader\[coordinator\]'"):
        star.require_grpc()
