"""The stream of sealed records: over sockets, cut anywhere, changed and forged."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import PeerLost
from ringleader.identity import record_cipher
from ringleader.identity.certificates import tls_context
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.record_cipher import RecordCipher
from ringleader.identity.secret_value import Secret
from ringleader.ids import NodeId
from ringleader.transport import memory_link
from ringleader.transport.sealed_reader import BUFFER_BYTES, SealedReader
from ringleader.transport.sealed_writer import SealedWriter
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.socket_link import SocketLink
from ringleader.wire.sealed_record import (
    ALPN,
    HEADER,
    MAX_RECORD_BYTES,
    OVERHEAD_BYTES,
)

PATIENCE_S = 60.0
NODE = NodeId("a" * 52)
SECRET = bytes(range(7, 39))


def cipher(*, is_dialer: bool = True) -> RecordCipher:
    return RecordCipher(Secret(SECRET), sender=NODE, is_dialer=is_dialer)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def sealed(*pieces: bytes) -> list[bytes]:
    """One record for each piece."""
    out = bytearray()

    def keep(view: memoryview) -> int:
        out.extend(view)
        return len(view)

    writer = SealedWriter(cipher(), keep, lambda: 4 * MAX_RECORD_BYTES)
    records = []
    for piece in pieces:
        assert writer.send(memoryview(piece)) == len(piece)
        records.append(bytes(out))
        out.clear()
    return records


class Source:
    """Bytes that arrive in pieces of the given lengths; then the stream ends."""

    def __init__(self, data: bytes, sizes: Callable[[], int]) -> None:
        self.data = data
        self.sizes = sizes
        self.is_ended = False

    def __call__(self, view: memoryview) -> int:
        if not self.data:
            self.is_ended = True
            return 0
        size = self.sizes()
        if not size:
            raise BlockingIOError
        piece = self.data[: min(size, len(view))]
        view[: len(piece)] = piece
        self.data = self.data[len(piece) :]
        return len(piece)


def read_all(
    data: bytes, sizes: Callable[[], int] = lambda: 1 << 20, room: int = 100_000
) -> tuple[bytes, bool]:
    """What a reader hands out, and whether it then found the stream broken."""
    source = Source(data, sizes)
    reader = SealedReader(cipher(), source)
    found = b""
    while True:
        view = memoryview(bytearray(room))
        try:
            received = reader.recv_into(view)
        except BlockingIOError:
            continue
        except ConnectionResetError:
            assert not any(view), "a byte of a bad record was handed out"
            with pytest.raises(ConnectionResetError):
                reader.recv_into(view)
            return found, True
        finally:
            assert len(reader._buffer) <= BUFFER_BYTES
        assert not any(view[received:])
        if not received:
            assert source.is_ended
            return found, False
        found += view[:received]


# -- records -----------------------------------------------------------------------


@pytest.mark.parametrize("room", [1000, 70_000, MAX_RECORD_BYTES, 3 * MAX_RECORD_BYTES])
@pytest.mark.parametrize("arriving", [1000, 100_000, 1 << 20])
def test_any_lengths_arrive_unchanged(room: int, arriving: int) -> None:
    sizes = [1, 2, 255, 20_000, MAX_RECORD_BYTES - 1, MAX_RECORD_BYTES]
    sizes += [MAX_RECORD_BYTES + 1, 2 * MAX_RECORD_BYTES + 17, 3, 5]
    pieces = [noise(size, seed) for seed, size in enumerate(sizes)]
    stream = b"".join(sealed(*pieces))
    assert read_all(stream, lambda: arriving, room) == (b"".join(pieces), False)


def test_a_record_costs_twenty_bytes() -> None:
    (record,) = sealed(bytes(1000))
    assert OVERHEAD_BYTES == 20
    assert len(record) == 1020


@pytest.mark.parametrize("at", [0, 3, 4, 50, 103, 104, 119])
def test_a_flipped_bit_ends_the_stream_and_hands_out_nothing_of_it(at: int) -> None:
    good, bad = sealed(noise(100), noise(100, 1))
    changed = bytearray(bad)
    changed[at] ^= 1
    found, is_broken = read_all(good + bytes(changed) + bytes(1 << 20))
    assert (found, is_broken) == (noise(100), True)


def test_a_repeated_left_out_or_exchanged_record_ends_the_stream() -> None:
    one, two, three = sealed(b"1" * 50, b"2" * 50, b"3" * 50)
    assert read_all(one + one + two) == (b"1" * 50, True)
    assert read_all(one + three) == (b"1" * 50, True)
    assert read_all(two + one) == (b"", True)
    assert read_all(one + two + one) == (b"1" * 50 + b"2" * 50, True)
    assert read_all(one + two + three) == (b"1" * 50 + b"2" * 50 + b"3" * 50, False)


def test_a_stream_that_is_cut_ends_with_the_last_whole_record() -> None:
    one, two = sealed(noise(300), noise(400, 1))
    for cut in range(0, len(one + two), 7):
        expected = noise(300) if cut >= len(one) else b""
        assert read_all((one + two)[:cut]) == (expected, False)


@pytest.mark.parametrize("length", [0, MAX_RECORD_BYTES + 1, 1 << 31, (1 << 32) - 1])
def test_a_length_that_is_not_allowed_is_refused_before_anything_is_allocated(
    length: int,
) -> None:
    source = Source(HEADER.pack(length) + bytes(100_000), lambda: 1 << 20)
    reader = SealedReader(cipher(), source)
    with pytest.raises(ConnectionResetError, match="record of"):
        reader.recv_into(memoryview(bytearray(1000)))
    assert len(reader._buffer) < 20_000


def test_a_length_that_is_not_allowed_is_noticed_before_anybody_waits() -> None:
    (good,) = sealed(noise(100))
    reader = SealedReader(cipher(), Source(good + HEADER.pack(0), lambda: 1 << 20))
    assert reader.recv_into(memoryview(bytearray(100))) == 100
    assert reader.has_pending(), "nothing more will come, and the reader knows why"


def test_any_bytes_are_data_of_the_peer_or_an_error() -> None:
    """A fuzz of the reader: changed, cut, repeated and foreign bytes."""
    for seed in range(300):
        chance = random.Random(seed)
        pieces = [noise(chance.randrange(1, 3000), seed + i) for i in range(6)]
        whole = b"".join(pieces)
        records = sealed(*pieces)
        stream = bytearray(b"".join(records))
        match chance.randrange(4):
            case 0:
                for _ in range(chance.randrange(1, 4)):
                    stream[chance.randrange(len(stream))] ^= 1 << chance.randrange(8)
            case 1:
                start = chance.randrange(len(stream))
                del stream[start : start + chance.randrange(1, 2000)]
            case 2:
                at = chance.randrange(len(stream))
                stream[at:at] = chance.randbytes(chance.randrange(1, 500))
            case 3:
                chance.shuffle(records)
                stream = bytearray(b"".join(records))
        sizes = partial(chance.choice, (0, 1, 30, 5000))
        found, _ = read_all(bytes(stream), sizes, room=2500)
        assert whole.startswith(found), f"seed {seed}"


# -- connections -------------------------------------------------------------------


def member(*, seals: bool = True) -> Credentials:
    secret = ClusterSecret(root=Secret(bytes(32)))
    made = Credentials.issue(secret, NodeKey.ephemeral())
    if not seals:
        for context in (made.client, made.server):
            context.set_alpn_protocols([ALPN])
    return made


@contextlib.contextmanager
def connected(
    *, dialer_seals: bool = True, listener_seals: bool = True
) -> Iterator[tuple[SecureSocket, SecureSocket]]:
    left, right = memory_link.socket_pair()
    dialled = SecureSocket(left, member(seals=dialer_seals), 1)
    listening = member(seals=listener_seals)
    accepted = SecureSocket(right, listening, 0, is_server=True)
    deadline = Deadline.after(PATIENCE_S)
    with dialled, accepted:
        while dialled.shake() | accepted.shake():
            assert not deadline.is_over()
        yield dialled, accepted


def swap(left: SecureSocket, right: SecureSocket, data: bytes) -> None:
    """Send ``data`` in both directions at once and compare what arrives."""
    deadline = Deadline.after(PATIENCE_S)
    sent, found = {left: 0, right: 0}, {left: bytearray(), right: bytearray()}
    while any(len(part) < len(data) for part in found.values()):
        assert not deadline.is_over()
        for sock in (left, right):
            with contextlib.suppress(BlockingIOError):
                sent[sock] += sock.send(memoryview(data)[sent[sock] :])
            with contextlib.suppress(BlockingIOError):
                found[sock] += sock.recv(len(data) - len(found[sock]))
    assert found[left] == found[right] == data


def test_links_are_sealed_unless_an_end_cannot() -> None:
    with connected() as (left, right):
        assert left.writer is not None
        assert right.writer is not None
        swap(left, right, noise(1_000_000))


def test_two_ends_that_read_only_as_far_as_they_have_sent_exchange_long_records() -> (
    None
):
    """As ranks that exchange chunks; the kernel holds a small part of a record."""
    data, deadline = noise(3 * MAX_RECORD_BYTES), Deadline.after(PATIENCE_S)
    with connected() as ends:
        sent, found = [0, 0], [bytearray(), bytearray()]
        for end in ends:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, 1 << 14)
        while any(len(part) < len(data) for part in found):
            assert not deadline.is_over(), f"sent {sent}, read {[*map(len, found)]}"
            for i, end in enumerate(ends):
                with contextlib.suppress(BlockingIOError):
                    sent[i] += end.send(memoryview(data)[sent[i] :])
                if room := sent[i] - len(found[i]):
                    with contextlib.suppress(BlockingIOError):
                        found[i] += end.recv(room)
        assert found == [data, data]


def test_a_kernel_that_holds_little_is_offered_as_much_as_a_long_record_holds() -> None:
    """Linux grants more memory only to a sender that fills what it has."""
    taken, offers, chance = bytearray(), [], random.Random(1)

    def take_some(view: memoryview) -> int:
        offers.append(len(view))
        if len(offers) % 3 == 0:
            raise BlockingIOError
        part = view[: chance.randrange(1, 10_000)]
        taken.extend(part)
        return len(part)

    data = noise(3 * MAX_RECORD_BYTES)
    writer, sent = SealedWriter(cipher(), take_some, lambda: 69_120), 0
    while sent < len(data):
        sent += writer.send(memoryview(data)[sent:])
        assert read_all(bytes(taken)) == (data[:sent], False), "whole records count"
    assert not writer.owes
    assert offers[0] > 0.9 * MAX_RECORD_BYTES


def test_a_record_counts_with_the_last_byte_of_its_tag() -> None:
    """Nobody sends the rest of it after the last call."""
    room = 0

    def take_some(view: memoryview) -> int:
        nonlocal room
        if not room:
            raise BlockingIOError
        size = min(room, len(view))
        room -= size
        return size

    data, sent, counts = memoryview(bytes(100)), 0, []
    writer = SealedWriter(cipher(), take_some, lambda: 69_120)
    for room in (0, 4, 100, 15, 1):  # noqa: B007 - ``take_some`` uses it
        sent += writer.send(data[sent:])
        counts.append(sent)
        assert writer.owes == (sent < 100)
    assert counts == [0, 0, 0, 0, 100]


@pytest.mark.parametrize(
    ("dialer", "listener"), [(False, True), (True, False), (False, False)]
)
def test_an_end_that_cannot_seal_speaks_tls_records(
    *, dialer: bool, listener: bool
) -> None:
    with connected(dialer_seals=dialer, listener_seals=listener) as (left, right):
        assert left.writer is None
        assert right.writer is None
        swap(left, right, noise(300_000))


def test_an_old_cryptography_offers_no_sealed_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Old:
        """Without ``encrypt_into``."""

    assert tls_context.offered() == ["ringleader/1-sealed", "ringleader/1"]
    monkeypatch.setattr(record_cipher, "AESGCM", Old)
    assert tls_context.offered() == ["ringleader/1"]


def test_secrets_and_data_are_not_on_the_wire_in_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = bytearray()
    raw_recv_into = SecureSocket._recv_raw

    def listen_in(self: SecureSocket, view: memoryview) -> int:
        received = raw_recv_into(self, view)
        seen.extend(view[:received])
        return received

    monkeypatch.setattr(SecureSocket, "_recv_raw", listen_in)
    monkeypatch.setattr(record_cipher, "new_secret", lambda: Secret(SECRET))
    with connected() as (left, right):
        swap(left, right, b"attack at dawn " * 100)
    assert len(seen) > 5000
    assert b"attack" not in seen
    assert SECRET not in seen
    assert SECRET[:8] not in seen


def test_both_directions_of_equal_secrets_have_different_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one end sent is sent back to it, as if the other had sealed it."""
    monkeypatch.setattr(record_cipher, "new_secret", lambda: Secret(SECRET))
    with connected() as (left, right):
        swap(left, right, b"hello")
        assert left.send(b"pay me") == 6
        record = socket.socket.recv(right, 1000)
        socket.socket.send(right, record)
        with pytest.raises(ConnectionResetError, match="integrity check"):
            left.recv(100)


def test_a_record_of_another_connection_does_not_open() -> None:
    with connected() as (one, one_end), connected() as (two, two_end):
        one.send(b"pay me")
        with pytest.raises(BlockingIOError):
            two_end.recv(100)  # its secret, and nothing behind it
        one_end.recv(1000, socket.MSG_PEEK)
        stolen = socket.socket.recv(one_end, 1000)
        socket.socket.send(two, stolen[-26:])
        with pytest.raises(ConnectionResetError, match="integrity check"):
            two_end.recv(100)


def test_tls_data_after_the_secret_does_not_open() -> None:
    with connected() as (left, right):
        swap(left, right, b"hello")
        left._records.tls.write(b"a")
        deadline, found = Deadline.after(PATIENCE_S), b""
        with pytest.raises(ConnectionResetError, match="record of"):
            found = flush_and_read(left, right, deadline)
        assert not found


def flush_and_read(
    left: SecureSocket, right: SecureSocket, deadline: Deadline
) -> bytes:
    while not deadline.is_over():
        left._records.flush()
        with contextlib.suppress(BlockingIOError):
            return right.recv(100)
    return b""


def test_a_secret_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(sock: SecureSocket) -> None:
        sock._is_sealed = True
        sock._records.tls.write(bytes(33))

    monkeypatch.setattr(SecureSocket, "_send_secret", talk)
    with (
        connected() as (left, _),
        pytest.raises(ConnectionResetError, match="TLS data where sealed"),
    ):
        left.recv(100)


def test_a_bad_record_is_a_lost_peer_for_the_link() -> None:
    with connected() as (left, right):
        swap(left, right, b"hello")
        socket.socket.send(left, HEADER.pack(100) + bytes(116))
        link = SocketLink(right, 0, "tls")
        for _ in range(2):
            with pytest.raises(PeerLost, match="integrity check") as caught:
                link.try_recv_into(memoryview(bytearray(1000)))
            assert caught.value.peer == 0


def test_keys_are_in_no_log_error_or_repr(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(record_cipher, "new_secret", lambda: Secret(SECRET))
    with connected() as (left, right):
        swap(left, right, b"hello")
        socket.socket.send(left, HEADER.pack(100) + bytes(116))
        with pytest.raises(ConnectionResetError) as caught:
            right.recv(100)
        shown = caplog.text + repr(caught.value) + repr(vars(right)) + repr(vars(left))
        assert not right._secret, "the received secret is kept"
    for form in (SECRET.hex(), repr(SECRET)[2:-1], repr(bytearray(SECRET))):
        assert form[:20] not in shown


# -- sending behind the caller -----------------------------------------------------


def behind(sock: SecureSocket, peer: int = 1) -> SocketLink:
    link = SocketLink(sock, peer, "tls")
    link.use_thread()
    assert link.sends_behind
    return link


def sending_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "ringleader-send"]


def test_a_thread_sends_the_same_bytes() -> None:
    data = noise(5_000_000)
    with connected() as (left, right):
        link, found = behind(left), bytearray()
        sent, deadline = 0, Deadline.after(PATIENCE_S)
        while len(found) < len(data):
            assert not deadline.is_over()
            if sent < len(data):
                sent += link.try_send_behind(memoryview(data)[sent : sent + (1 << 20)])
            with contextlib.suppress(BlockingIOError):
                found += right.recv(300_000)
        while sent < len(data):
            assert not deadline.is_over()
            sent += link.try_send_behind(memoryview(data)[sent:])
        assert found == data
        assert not left.owes
        link.close()
        assert not sending_threads()


def test_short_messages_follow_what_a_thread_sends() -> None:
    data = noise(700_000)
    with connected() as (left, right):
        link, found, deadline = behind(left), bytearray(), Deadline.after(PATIENCE_S)
        for view in (memoryview(data), memoryview(b"short"), memoryview(b"last")):
            left_over = view
            while left_over:
                assert not deadline.is_over()
                send = link.try_send_behind if len(view) > 10 else link.try_send
                left_over = left_over[send(left_over) :]
                with contextlib.suppress(BlockingIOError):
                    found += right.recv(300_000)
        while len(found) < len(data) + 9:
            assert not deadline.is_over()
            with contextlib.suppress(BlockingIOError):
                found += right.recv(300_000)
        assert found == data + b"shortlast"
        link.close()


def test_after_stop_sending_nothing_of_the_view_is_read() -> None:
    """The tensor belongs to the caller again, and what it writes there is not sent."""
    data = bytearray(b"\1" * 4_000_000)
    with connected() as (left, right):
        link = behind(left)
        link.try_send_behind(memoryview(data)[: 1 << 20])
        link.stop_sending()
        data[:] = bytes(len(data))
        with pytest.raises(PeerLost, match="half way"):
            link.try_send_behind(memoryview(data)[: 1 << 20])
        link.close()
        found, deadline = bytearray(), Deadline.after(PATIENCE_S)
        while not deadline.is_over():
            part = right.recv(100_000)
            if not part:
                break
            found += part
        assert set(found) <= {1}


def test_a_peer_that_dies_while_a_thread_sends_is_lost() -> None:
    data = memoryview(bytes(1 << 20))
    with connected() as (left, right):
        link, deadline = behind(left), Deadline.after(PATIENCE_S)
        for _ in range(3):
            link.try_send_behind(data)
        right.close()
        with pytest.raises(PeerLost) as caught:
            send_until_lost(link, data, deadline)
        assert caught.value.peer == 1
        link.close()
        assert not sending_threads()


def send_until_lost(link: SocketLink, data: memoryview, deadline: Deadline) -> None:
    while not deadline.is_over():
        link.try_send_behind(data)


def test_a_full_connection_is_waited_for_by_its_descriptor() -> None:
    data = memoryview(bytes(1 << 20))
    with connected() as (left, _):
        link, deadline = behind(left), Deadline.after(PATIENCE_S)
        wanted = None
        while wanted is None:
            assert not deadline.is_over()
            link.try_send_behind(data)
            wanted = link.arm(sending=True, receiving=False)
        assert wanted == [(left.fileno(), 4)]
        link.close()
