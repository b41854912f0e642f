"""TLS on a socket: accepted and refused peers, and records cut anywhere."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from ringleader.deadline import Deadline
from ringleader.errors import PeerError, PeerLost, PeerUntrusted
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.ids import NodeId
from ringleader.transport import memory_link, secure_socket, tls_records
from ringleader.transport.link import POLLIN, POLLOUT
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.socket_link import SocketLink
from ringleader.transport.tls_credentials import TlsCredentials
from ringleader.wire.sealed_record import ALPN

Ends = tuple[SecureSocket, SecureSocket]


def issue(cluster: int = 0) -> Credentials:
    """A new node of a cluster."""
    secret = ClusterSecret(root=Secret(bytes([cluster]) * 32))
    return Credentials.issue(secret, NodeKey.ephemeral())


@cache
def member(number: int, *, seals: bool = True) -> Credentials:
    """A node of a cluster; ``seals``: it offers sealed records."""
    made = issue()
    if not seals:
        for context in (made.client, made.server):
            context.set_alpn_protocols([ALPN])
    return made


@dataclass
class Odd:
    """A credentials whose parts a test can exchange."""

    node: NodeId
    namespace: bytes
    server: ssl.SSLContext
    client: ssl.SSLContext
    name: str | None
    inner: Credentials

    def server_name(self, label: str = "", *, host: str = "") -> str:
        return self.inner.server_name(label) if self.name is None else self.name

    def announceable(self, hosts: Sequence[str]) -> tuple[str, ...]:
        return self.inner.announceable(hosts)

    def check_hosts(
        self, der: bytes | None, hosts: Sequence[str], peer: int | str
    ) -> None:
        self.inner.check_hosts(der, hosts, peer)

    def verify(
        self,
        der: bytes | None,
        *,
        expect: NodeId | None = None,
        siblings: bool = False,
        peer: int | str = "the peer",
    ) -> NodeId:
        return self.inner.verify(der, expect=expect, siblings=siblings, peer=peer)

    def pem(self) -> PemCredentials:
        return self.inner.pem()


def odd(inner: Credentials | None = None, name: str | None = None) -> Odd:
    made = inner or issue()
    return Odd(made.node, made.namespace, made.server, made.client, name, made)


@contextlib.contextmanager
def ends(
    client: TlsCredentials, server: TlsCredentials, expect: NodeId | None = None
) -> Iterator[Ends]:
    left, right = memory_link.socket_pair()
    dialled = SecureSocket(left, client, 1, expect=expect)
    accepted = SecureSocket(right, server, "10.0.0.1:99", is_server=True)
    with dialled, accepted:
        yield dialled, accepted


def shake(pair: Ends) -> tuple[PeerError | OSError | None, PeerError | OSError | None]:
    """Both sides of the handshake to its end: what each of them raised."""
    errors: list[PeerError | OSError | None] = [None, None]
    waits = [True, True]
    deadline = Deadline.after(60.0)
    while any(waits):
        assert not deadline.is_over(), "the handshake hangs"
        for i, sock in enumerate(pair):
            if not waits[i]:
                continue
            try:
                waits[i] = bool(sock.shake())
            except (PeerError, OSError) as exc:
                waits[i], errors[i] = False, exc
                sock.shutdown(socket.SHUT_WR)
    return errors[0], errors[1]


def first_read(sock: SecureSocket) -> BaseException | bytes:
    """What the first read gives: the judgement on us may come only now."""
    try:
        return sock.recv(10)
    except (PeerError, OSError) as exc:
        return exc


@contextlib.contextmanager
def connected(*, seals: bool = True) -> Iterator[Ends]:
    with ends(member(0, seals=seals), member(1, seals=seals)) as pair:
        assert shake(pair) == (None, None)
        yield pair


both = pytest.mark.parametrize("seals", [True, False], ids=["sealed", "tls"])
"""Sealed records, and those of TLS."""


# -- handshake ---------------------------------------------------------------------


def test_two_members_prove_who_they_are() -> None:
    with ends(member(0), member(1), expect=member(1).node) as pair:
        assert not pair[0].node
        assert not pair[1].node
        assert shake(pair) == (None, None)
        assert pair[0].node == member(1).node
        assert pair[1].node == member(0).node


def test_the_handshake_goes_on_inside_reads_and_writes() -> None:
    """As the listener drives it, without calls of ``shake``."""
    with ends(member(0), member(1)) as (left, right):
        deadline, sent, data = Deadline.after(60.0), 0, b""
        while len(data) < 5:
            assert not deadline.is_over()
            with contextlib.suppress(BlockingIOError):
                sent = sent or left.send(b"hello")
            with contextlib.suppress(BlockingIOError):
                data += right.recv(192)
        assert (sent, data) == (5, b"hello")


def test_processes_of_one_node_may_speak_to_each_other() -> None:
    with ends(member(0), member(0)) as pair:
        assert shake(pair) == (None, None)


def test_another_member_than_expected_is_not_spoken_to() -> None:
    with ends(member(0), member(1), expect=member(2).node) as pair:
        error, _ = shake(pair)
        assert isinstance(error, PeerUntrusted)
        assert error.peer == 1
        assert "unexpected node" in str(error)
        assert not pair[1].node, "and it has not seen our certificate"


def test_another_cluster_is_refused() -> None:
    with ends(member(0), issue(cluster=1)) as pair:
        mine, theirs = shake(pair)
        assert isinstance(mine, PeerUntrusted)
        assert "refused the connection" in str(mine)
        assert isinstance(theirs, PeerUntrusted)
        assert "does not know our secret" in str(theirs)


def test_a_server_of_another_cluster_is_not_trusted() -> None:
    """A former member knows the SNI key; that alone does not admit it."""
    with ends(odd(name=member(1).server_name()), odd(issue(cluster=1))) as pair:
        pair[1]._records.tls.context.sni_callback = None
        mine, theirs = shake(pair)
        assert isinstance(mine, PeerUntrusted)
        assert "its certificate is not from this cluster" in str(mine)
        assert isinstance(theirs, PeerUntrusted)


def test_a_client_of_another_cluster_learns_it_with_its_first_read() -> None:
    """The server name is right, the certificate is not: the server has sent data."""
    server = member(1)
    client = odd(issue(cluster=1))
    client.name = server.server_name()
    client.client.verify_mode = ssl.CERT_NONE
    client.verify = lambda *_, **__: server.node  # type: ignore[method-assign]
    with ends(client, server) as pair:
        mine, theirs = shake(pair)
        assert mine is None, "its handshake ends before we have judged it"
        assert isinstance(theirs, PeerUntrusted)
        assert theirs.peer == "10.0.0.1:99"
        assert "not from this cluster" in str(theirs)
        said = first_read(pair[0])
        assert isinstance(said, PeerUntrusted)
        assert "does not accept our certificate" in str(said)


def test_who_shows_no_certificate_gets_nowhere() -> None:
    server = member(1)
    client = odd()
    client.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.client.check_hostname = False
    client.client.set_alpn_protocols([ALPN])
    authority = server._verifier.authority.public_bytes(Encoding.DER)
    client.client.load_verify_locations(cadata=authority)
    with ends(client, server) as pair:
        mine, theirs = shake(pair)
        assert mine is None
        assert isinstance(theirs, PeerUntrusted)
        assert "showed no certificate" in str(theirs)
        assert isinstance(first_read(pair[0]), PeerUntrusted)


@pytest.mark.parametrize("old", ["client", "server"])
def test_nothing_older_than_tls_1_3_is_spoken(old: str) -> None:
    client, server = odd(), odd()
    context = client.client if old == "client" else server.server
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with ends(client, server) as pair:
        mine, theirs = shake(pair)
        for error in (mine, theirs):
            assert isinstance(error, PeerUntrusted)
        assert "does not speak TLS 1.3" in str(mine)


@pytest.mark.parametrize("protocols", [[], ["h2"], ["ringleader/2"]])
def test_the_protocol_inside_is_ours(protocols: list[str]) -> None:
    """Python ends a handshake without a common protocol as if all were well."""
    client = odd()
    client.client.set_alpn_protocols(protocols)
    with ends(client, member(1)) as pair:
        mine, theirs = shake(pair)
        assert isinstance(mine, PeerUntrusted)
        assert f"not {ALPN}" in str(mine)
        assert isinstance(theirs, PeerUntrusted | ConnectionError)
        assert not pair[1].node


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"RINGLDR\0" + bytes(184),
        bytes(range(256)),
        b"SSH-2.0-x\r\n",
    ],
    ids=["http", "plain hello", "bytes", "ssh"],
)
def test_who_does_not_speak_tls_is_told_so_in_seven_bytes(data: bytes) -> None:
    left, right = memory_link.socket_pair()
    with left, SecureSocket(right, member(1), "there", is_server=True) as accepted:
        left.send(data)
        with pytest.raises(PeerUntrusted, match="does not speak TLS"):
            accepted.shake()
        assert left.recv(100) == secure_socket.NOT_TLS


@pytest.mark.parametrize("data", [b"RINGLDR\1" + bytes(120), b"SSH-2.0-x\r\n"])
def test_a_server_that_does_not_speak_tls_is_named(data: bytes) -> None:
    left, right = memory_link.socket_pair()
    with SecureSocket(left, member(0), 1) as dialled, right:
        assert dialled.shake() == POLLIN
        right.recv(4096)
        right.send(data)
        with pytest.raises(PeerUntrusted, match="CREDENTIALS not set there") as caught:
            dialled.shake()
        assert caught.value.peer == 1


def test_a_server_name_is_accepted_once() -> None:
    name = member(1).server_name()
    with ends(odd(name=name), member(1)) as pair:
        assert shake(pair) == (None, None)
    with ends(odd(name=name), member(1)) as pair:
        mine, _ = shake(pair)
        assert "refused the connection" in str(mine)


def test_who_hangs_up_in_the_handshake_is_lost_and_not_untrusted() -> None:
    left, right = memory_link.socket_pair()
    with SecureSocket(left, member(0), 1) as dialled:
        assert dialled.shake() == POLLIN
        right.close()
        with pytest.raises(ConnectionResetError):
            dialled.shake()


def test_an_endless_handshake_does_not_keep_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hello in fragments of one byte: every step ends after a few of them."""
    left, right = memory_link.socket_pair()
    monkeypatch.setattr(tls_records, "RECORD_BYTES", 6)  # what a step fetches at once
    with left, SecureSocket(right, member(1), "there", is_server=True) as accepted:
        accepted._records._fetched = memoryview(bytearray(6))
        hello = b"\1\0\x02\0" + bytes(512)
        left.send(b"".join(b"\x16\3\1\0\1" + bytes([byte]) for byte in hello))
        assert accepted.shake() == POLLIN
        left_over = accepted.recv(1 << 16, socket.MSG_PEEK)
        assert len(left_over) > 2000, "one step took it all"


# -- the stream --------------------------------------------------------------------


def fill(sock: SecureSocket, data: bytes) -> int:
    """Send until nothing goes any more; how much counts as sent."""
    total = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            total += sock.send(memoryview(data)[total:])
    assert total < len(data)
    return total


def take(sock: SecureSocket, size: int) -> bytes:
    """Up to ``size`` bytes that are there."""
    data = bytearray(size)
    view = memoryview(data)
    with contextlib.suppress(BlockingIOError):
        while view:
            view = view[sock.recv_into(view) :]
    return bytes(data[: size - len(view)])


NOISE = bytes(range(251)) * 40_000


@both
def test_a_record_that_was_cut_goes_on_where_it_was_cut(seals: bool) -> None:
    with connected(seals=seals) as (left, right):
        sent = fill(left, NOISE)
        assert left.owes, "a part of the next record has left"
        data = take(right, len(NOISE))
        assert data[:sent] == NOISE[:sent]
        while len(data) < len(NOISE):
            with contextlib.suppress(BlockingIOError):
                sent += left.send(memoryview(NOISE)[sent:])
            data += take(right, len(NOISE))
        sent += left.send(memoryview(NOISE)[sent:])
        assert sent == len(NOISE)
        assert data == NOISE
        assert not left.owes


@both
def test_a_shorter_view_after_a_cut_counts_no_byte_twice(seals: bool) -> None:
    with connected(seals=seals) as (left, right):
        sent = fill(left, NOISE)
        data = take(right, len(NOISE))
        for size in (1, 2, 100, 70_000):
            assert left.send(memoryview(NOISE)[sent : sent + size]) == size
            sent += size
            data += take(right, len(NOISE))
        assert data[:sent] == NOISE[:sent]
        sent += left.send(memoryview(NOISE)[sent : sent + 100_000])
        data += take(right, len(NOISE))
        assert data[:sent] == NOISE[:sent]


@both
def test_reading_goes_on_while_writing_is_blocked(seals: bool) -> None:
    with connected(seals=seals) as (left, right):
        fill(left, NOISE)
        right.send(b"still here")
        assert left.recv(100) == b"still here"


@both
def test_one_read_takes_many_records(seals: bool) -> None:
    with connected(seals=seals) as (left, right):
        for _ in range(100):
            assert left.send(b"0123456789") == 10
        assert right.recv(1000) == b"0123456789" * 100


@both
def test_what_is_decrypted_and_not_taken_counts_as_work(seals: bool) -> None:
    with connected(seals=seals) as (left, right):
        link = SocketLink(right, 0, "tls")
        left.send(bytes(range(100)))
        assert right.recv(10) == bytes(range(10))
        assert right.has_pending()
        assert link.arm(sending=False, receiving=True) is None, "poll would sleep"
        assert link.arm(sending=True, receiving=False) == [(right.fileno(), POLLOUT)]
        assert right.recv(100) == bytes(range(10, 100))
        assert not right.has_pending()
        assert link.arm(sending=False, receiving=True) == [(right.fileno(), POLLIN)]


def test_half_a_record_is_no_work() -> None:
    with connected(seals=False) as (left, right):
        left._records.tls.write(b"one whole record")
        record = left._records.outgoing.read()
        socket.socket.send(left, record[:10])
        with pytest.raises(BlockingIOError):
            right.recv(100)
        assert not right.has_pending()
        socket.socket.send(left, record[10:])
        assert right.recv(100) == b"one whole record"


@pytest.mark.parametrize("at", [0, 3, 5, 20, -1])
def test_a_flipped_bit_ends_the_stream_before_a_byte_of_it_is_handed_out(
    at: int,
) -> None:
    with connected(seals=False) as (left, right):
        left.send(b"good")
        left._records.tls.write(b"evil" * 100)
        record = bytearray(left._records.outgoing.read())
        record[at] ^= 1
        socket.socket.send(left, record)
        left.shutdown(socket.SHUT_WR)
        link = SocketLink(right, 0, "tls")
        view = memoryview(bytearray(1000))
        assert link.try_recv_into(view) == 4
        with pytest.raises(PeerLost) as caught:
            link.try_recv_into(view)
        assert caught.value.peer == 0
        assert bytes(view[4:]) == bytes(996)


def test_a_replayed_record_ends_the_stream() -> None:
    with connected(seals=False) as (left, right):
        left._records.tls.write(b"pay me")
        record = left._records.outgoing.read()
        socket.socket.send(left, record + record)
        assert right.recv(100) == b"pay me"
        with pytest.raises(ConnectionResetError, match="integrity check"):
            right.recv(100)


def test_a_cut_stream_is_an_end_and_half_a_record_is_dropped() -> None:
    with connected(seals=False) as (left, right):
        left._records.tls.write(b"never arrives")
        socket.socket.send(left, left._records.outgoing.read()[:-1])
        left.close()
        assert right.recv(100) == b""


def test_why_we_were_refused_is_heard_even_when_our_hello_came_too_late() -> None:
    """The server judged us, said no and hung up before we said anything."""
    server, client = member(1), odd(issue(cluster=1))
    client.name = server.server_name()
    client.client.verify_mode = ssl.CERT_NONE
    client.verify = lambda *_, **__: server.node  # type: ignore[method-assign]
    with ends(client, server) as (left, right):
        shake((left, right))
        right.close()
        with pytest.raises(PeerUntrusted, match="does not accept our certificate"):
            left.send(b"hello")
