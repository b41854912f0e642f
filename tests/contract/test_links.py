"""Every link keeps the promises of ringleader.testing.link_contract."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cache

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import PeerLost
from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.testing import link_contract
from ringleader.testing.link_contract import CHECKS, LEFT, RIGHT, Check, MakePair
from ringleader.transport import memory_link, shm_segment, tcp_socket
from ringleader.transport.link import Link, wait_ready
from ringleader.transport.listening_socket import listen
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.shm_link import ShmLink, ShmPeer
from ringleader.transport.socket_link import STRIPE_BYTES, SocketLink, StripedLink
from ringleader.wire.sealed_record import ALPN

POLLIN = 1


def memory_pair() -> tuple[Link, Link]:
    return memory_link.memory_link_pair(LEFT, RIGHT)


def _tcp_sockets(host: str) -> tuple[socket.socket, socket.socket]:
    listening = listen(host, 0)
    port: int = listening.getsockname()[1]
    dialled = tcp_socket.dial((host, port), RIGHT, Deadline.after(60.0))
    wait_ready([(listening.fileno(), POLLIN)], 60.0)
    accepted, _ = listening.accept()
    tcp_socket.tune(accepted)
    listening.close()
    return dialled, accepted


def _tcp_pair(host: str) -> tuple[SocketLink, SocketLink]:
    dialled, accepted = _tcp_sockets(host)
    return SocketLink(dialled, RIGHT, "tcp"), SocketLink(accepted, LEFT, "tcp")


def tcp4_pair() -> tuple[Link, Link]:
    return _tcp_pair("127.0.0.1")


def tcp6_pair() -> tuple[Link, Link]:
    return _tcp_pair("::1")


@cache
def credentials(rank: int, *, seals: bool = True) -> Credentials:
    """One node of a cluster for each end; ``seals``: it offers sealed records."""
    secret = ClusterSecret(root=Secret(bytes(32)))
    made = Credentials.issue(secret, NodeKey.ephemeral())
    if not seals:
        for context in (made.client, made.server):
            context.set_alpn_protocols([ALPN])
    return made


def _tls_pair(
    sockets: tuple[socket.socket, socket.socket] | None = None,
    *,
    seals: bool = True,
) -> tuple[SocketLink, SocketLink]:
    dialled, accepted = sockets or _tcp_sockets("127.0.0.1")
    ours, theirs = (credentials(rank, seals=seals) for rank in (LEFT, RIGHT))
    left = SecureSocket(dialled, ours, RIGHT)
    right = SecureSocket(accepted, theirs, LEFT, is_server=True)
    deadline = Deadline.after(60.0)
    while left.shake() | right.shake():
        assert not deadline.is_over()
    assert (left.node, right.node) == (theirs.node, ours.node)
    assert (left.writer is not None) == (right.writer is not None) == seals
    for sender, receiver in ((left, right), (right, left)):  # as hello and reply do
        assert sender.send(b"hello") == 5
        wait_ready([(receiver.fileno(), POLLIN)], 60.0)
        assert receiver.recv(10) == b"hello"
    return SocketLink(left, RIGHT, "tls"), SocketLink(right, LEFT, "tls")


def tls_pair() -> tuple[Link, Link]:
    return _tls_pair()


def tls_memory_pair() -> tuple[Link, Link]:
    """Over a Unix socket, whose small buffer cuts records in the middle."""
    return _tls_pair(memory_link.socket_pair())


def tls_records_pair() -> tuple[Link, Link]:
    """With a peer that cannot seal records."""
    return _tls_pair(seals=False)


def tls_thread_pair() -> tuple[Link, Link]:
    """Links that send long views in a thread."""
    left, right = _tls_pair()
    for link in (left, right):
        link.use_thread()
        link.try_send = link.try_send_behind  # type: ignore[method-assign]
    return left, right


def _striped(
    num: int,
    make_one: Callable[[], tuple[SocketLink, SocketLink]] = lambda: _tcp_pair(
        "127.0.0.1"
    ),
) -> MakePair:
    def make() -> tuple[Link, Link]:
        pairs = [make_one() for _ in range(num)]
        return StripedLink([a for a, _ in pairs]), StripedLink([b for _, b in pairs])

    return make


def shm_peers(*, semaphores: bool) -> tuple[ShmPeer, ShmPeer]:
    """Two ranks of one host, as the mesh makes them, inside one process."""
    geometry = shm_segment.Geometry(2)
    doorbells = memory_link.socket_pair()
    own, seen = [], []
    for rank in (LEFT, RIGHT):
        fd, mine = shm_segment.create(geometry, bytes([rank]) * 16)
        if not semaphores:  # as on systems without process-shared semaphores
            mine.view[16] = 0
        own.append(mine)
        seen.append(shm_segment.attach(fd, geometry, bytes([rank]) * 16))
        os.close(fd)
    return (
        ShmPeer(doorbells[0], (LEFT, RIGHT), (own[0], seen[1]), geometry),
        ShmPeer(doorbells[1], (RIGHT, LEFT), (own[1], seen[0]), geometry),
    )


def shm_pair() -> tuple[Link, Link]:
    left, right = shm_peers(semaphores=True)
    assert left.has_semaphores
    return ShmLink(left), ShmLink(right)


def doorbell_pair() -> tuple[Link, Link]:
    left, right = shm_peers(semaphores=False)
    assert not left.has_semaphores
    return ShmLink(left), ShmLink(right)


PAIRS: dict[str, Callable[[], tuple[Link, Link]]] = {
    "memory": memory_pair,
    "tcp-ipv4": tcp4_pair,
    "tcp-ipv6": tcp6_pair,
    "tcp-x2": _striped(2),
    "tcp-x3": _striped(3),
    "tls": tls_pair,
    "tls-unix": tls_memory_pair,
    "tls-records": tls_records_pair,
    "tls-thread": tls_thread_pair,
    "tls-x3": _striped(3, _tls_pair),
    "shm": shm_pair,
    "shm-doorbell": doorbell_pair,
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make_pair", PAIRS.values(), ids=PAIRS)
def test_link_keeps_its_promise(make_pair: MakePair, check: Check) -> None:
    link_contract.run_check(check, make_pair)


def test_the_whole_contract_in_one_call() -> None:
    link_contract.check_link(memory_pair)


def test_a_striped_link_changes_connection_after_every_stripe() -> None:
    """It is part of the wire format: both sides must agree without a word."""
    pairs = [memory_link.memory_link_pair(LEFT, RIGHT) for _ in range(3)]
    link = StripedLink([left for left, _ in pairs])
    stripes = [bytes([i]) * STRIPE_BYTES for i in range(7)]
    view = memoryview(b"".join(stripes))
    arrived = [bytearray() for _ in pairs]
    while view:
        view = view[link.try_send(view) :]
        for (_, right), data in zip(pairs, arrived, strict=True):
            buffer = bytearray(STRIPE_BYTES)
            data += buffer[: right.try_recv_into(memoryview(buffer))]
    for (_, right), data in zip(pairs, arrived, strict=True):
        buffer = bytearray(STRIPE_BYTES)
        while received := right.try_recv_into(memoryview(buffer)):
            data += buffer[:received]
    for i, data in enumerate(arrived):
        assert bytes(data) == b"".join(stripes[i::3])
    link.close()
    for _, right in pairs:
        right.close()


@pytest.mark.parametrize("semaphores", [True, False])
def test_what_a_peer_signalled_before_its_end_counts(semaphores: bool) -> None:
    """It may come between our last look at the signal and our look at the doorbell."""
    left, right = shm_peers(semaphores=semaphores)
    left.close()
    assert right.hear_unless(lambda: True)
    with pytest.raises(PeerLost) as caught:
        right.hear_unless(lambda: False)
    assert caught.value.peer == LEFT
    right.close()
