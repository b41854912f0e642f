"""A probe measures a link over what tensors use: sealed records, between members."""

from __future__ import annotations

import socket

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import PeerError, PeerUntrusted
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.ids import NodeId
from ringleader.node.peering import link_probe
from ringleader.node.peering.link_probe import LinkProbe
from ringleader.node.peering.link_probe import measure as measure_link
from ringleader.testing.threaded_world import run_threads
from ringleader.topology.link_profile import LinkProfile
from ringleader.transport.dialer import secure
from ringleader.transport.listening_socket import listen
from ringleader.transport.secure_socket import SecureSocket


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_probe, "LIMIT_S", 300.0)


def member() -> Credentials:
    secret = ClusterSecret(root=Secret(bytes(range(32))))
    return Credentials.issue(secret, NodeKey.ephemeral())


def measure(
    one: Credentials, other: Credentials, expect: NodeId
) -> list[LinkProfile | PeerError]:
    """What both ends find; the first one dials the node that it expects."""
    listening = listen("127.0.0.1", 0)
    address = listening.getsockname()

    def dial() -> LinkProfile | PeerError:
        try:
            return LinkProbe(one, range(1))._dial(address, expect)
        except PeerError as exc:
            return exc

    def accept() -> LinkProfile | PeerError:
        try:
            return LinkProbe(other, range(1))._accept(listening, one.node)
        except PeerError as exc:
            return exc

    return run_threads([dial, accept])


def test_a_link_is_measured_with_the_records_of_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of Python's TLS are slower than many networks."""
    made: list[SecureSocket] = []

    def note(sock: SecureSocket, deadline: Deadline) -> SecureSocket:
        made.append(secure(sock, deadline))
        return made[-1]

    monkeypatch.setattr(link_probe, "secure", note)
    one, other = member(), member()
    here, there = measure(one, other, other.node)
    assert isinstance(here, LinkProfile)
    assert isinstance(there, LinkProfile)
    assert here.out_bytes_per_s == there.in_bytes_per_s > 0
    assert here.in_bytes_per_s == there.out_bytes_per_s > 0
    assert [sock.writer is not None for sock in made] == [True, True]
    assert {sock.node for sock in made} == {one.node, other.node}


def test_another_node_than_expected_is_not_measured() -> None:
    one, other = member(), member()
    here, there = measure(one, other, member().node)
    assert isinstance(here, PeerUntrusted)
    assert "unexpected node" in str(here)
    assert isinstance(there, PeerError)


def test_a_peer_that_leaves_at_once_is_an_error_of_the_peer() -> None:
    """Other errors would end the measurements of all links."""
    one, gone = member(), socket.socket()
    with pytest.raises(PeerError, match="cannot be reached"):
        measure_link(gone, one, member().node, Deadline.after(300.0), is_server=True)
    assert gone.fileno() < 0
