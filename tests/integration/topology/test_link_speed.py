"""Measuring a link ends in time and within bounds, whatever the other side does."""

from __future__ import annotations

import datetime
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerError, PeerLost, ProtocolError
from ringleader.testing.threaded_world import run_threads
from ringleader.topology.interface_kind import InterfaceKind
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.link_speed import (
    MAX_BURSTS,
    MAX_BYTES,
    MAX_PINGS,
    MeasuredStream,
    measure_receiving,
    measure_sending,
)

MESSAGE = struct.Struct("!4sId")
Measure = Callable[..., LinkProfile]
BOTH = pytest.mark.parametrize("measure", [measure_sending, measure_receiving])


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def both(a: MeasuredStream, b: MeasuredStream) -> list[LinkProfile]:
    kind = InterfaceKind.LOOPBACK
    return run_threads(
        [
            lambda: measure_sending(a, Deadline.after(60), kind=kind),
            lambda: measure_receiving(b, Deadline.after(60), kind=kind),
        ]
    )


def best(a: MeasuredStream, b: MeasuredStream, least: float) -> LinkProfile:
    """Measure until both directions are above ``least``: a busy machine is slower."""
    for _ in range(30):
        here, there = both(a, b)
        assert here.out_bytes_per_s == there.in_bytes_per_s
        assert here.in_bytes_per_s == there.out_bytes_per_s
        if min(here.out_bytes_per_s, here.in_bytes_per_s) > least:
            return here
    raise AssertionError(f"slower than {least:.0f} bytes/s in 30 tries")


def test_both_ends_end_with_the_same_figures() -> None:
    with pair() as (a, b):
        a.settimeout(7.5)
        here = best(a, b, 50e6)
        assert min(here.out_bytes_per_s, here.in_bytes_per_s) > 50e6
        assert 0 < here.latency_s < 0.1
        assert here.kind is InterfaceKind.LOOPBACK
        assert a.gettimeout() == 7.5, "the socket is as it was"
        assert b.gettimeout() is None
        both(a, b)  # and the stream is clean: it can be done again


def certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "probe")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    forms = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "probe.pem"
    text = key.private_bytes(*forms) + made.public_bytes(serialization.Encoding.PEM)
    path.write_bytes(text)
    return path


def test_links_under_tls_are_measured_the_same_way(tmp_path: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate(tmp_path))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with pair() as (a, b):
        a.settimeout(60)
        b.settimeout(60)
        outer, inner = run_threads(
            [
                lambda: client.wrap_socket(a),
                lambda: server.wrap_socket(b, server_side=True),
            ]
        )
        with outer, inner:
            assert best(outer, inner, 20e6).mirrored().out_bytes_per_s > 20e6


class Counted:
    """A socket that notes how long each part is that it is to send."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.parts: list[int] = []
        self.recv_into = sock.recv_into
        self.settimeout, self.gettimeout = sock.settimeout, sock.gettimeout

    def send(self, data: memoryview, /) -> int:
        self.parts.append(len(data))
        return self._sock.send(data)


def test_a_burst_is_sent_in_parts_of_which_a_quarter_is_seen() -> None:
    """Encryption hands out whole parts: of a burst in one part the receiver would see
    nothing but the end, and take what a shaper lets through at first for speed."""
    with pair() as (a, b):
        counted = Counted(a)
        both(counted, b)
    bursts = [part for part in counted.parts if part != MESSAGE.size]
    assert bursts[:16] == [3 << 10] * 16
    assert max(bursts) <= 256 << 10


@BOTH
def test_a_silent_peer_costs_no_more_than_the_deadline(measure: Measure) -> None:
    with pair() as (a, _):
        started_s = time.monotonic()
        with pytest.raises(
            DeadlineExceeded, match=r"attic: .* not measured within 0.2"
        ):
            measure(a, Deadline.after(0.2), peer="attic")
        assert 0.19 < time.monotonic() - started_s < 30


@BOTH
def test_a_peer_that_hangs_up_is_lost(measure: Measure) -> None:
    with pair() as (a, b):
        b.close()
        with pytest.raises(PeerLost, match="attic"):
            measure(a, Deadline.after(60), peer="attic")


def test_a_peer_that_drips_bytes_does_not_stretch_the_deadline() -> None:
    """Each byte comes within any timeout of a single call; the whole does not."""
    stop = threading.Event()
    with pair() as (a, b):

        def drip() -> None:
            b.sendall(MESSAGE.pack(b"brst", 1 << 20, 0))
            while not stop.wait(0.01):
                b.send(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        started_s = time.monotonic()
        try:
            with pytest.raises(DeadlineExceeded):
                measure_receiving(a, Deadline.after(0.3))
        finally:
            stop.set()
            dripping.join()
        assert time.monotonic() - started_s < 30


def test_a_peer_that_reads_nothing_does_not_stretch_the_deadline() -> None:
    with pair() as (a, b):
        b.sendall(MESSAGE.pack(b"pong", 0, 0) * 5 + MESSAGE.pack(b"took", 0, 1e-6) * 8)
        started_s = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            measure_sending(a, Deadline.after(0.3))
        assert time.monotonic() - started_s < 30


def scold(script: bytes, measure: Measure = measure_receiving) -> ProtocolError:
    """The error for a peer that says ``script``; what we send is read and ignored."""
    with pair() as (a, b):

        def answer() -> None:
            with suppress(OSError):  # it hung up on us, and rightly
                b.sendall(script)
                while b.recv(1 << 16):
                    pass

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            with pytest.raises(ProtocolError) as caught:
                measure(a, Deadline.after(60), peer="mallory")
        finally:
            a.close()
            answering.join()
    assert caught.value.peer == "mallory"
    return caught.value


def burst(size: int) -> bytes:
    return MESSAGE.pack(b"brst", size, 0) + bytes(size)


@pytest.mark.parametrize(
    "script",
    [
        MESSAGE.pack(b"brst", MAX_BYTES + 1, 0),
        MESSAGE.pack(b"brst", 0xFFFFFFFF, 0),
        MESSAGE.pack(b"brst", 0, 0),
        burst(MAX_BYTES // 2) + burst(MAX_BYTES // 2) + burst(1),
        burst(1) * (MAX_BURSTS + 1),
        MESSAGE.pack(b"ping", 0, 0) * (MAX_PINGS + 1),
        MESSAGE.pack(b"took", 0, 1.0),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["long", "longest", "empty", "too much", "too many", "pings", "turn", "http"],
)
def test_what_a_sender_may_not_send_is_refused(script: bytes) -> None:
    assert "not allowed" in str(scold(script))


@pytest.mark.parametrize("took_s", [0.0, -1.0, 1e9, float("nan"), float("inf")])
def test_what_a_receiver_cannot_have_seen_is_refused(took_s: float) -> None:
    script = MESSAGE.pack(b"pong", 0, 0) * 5 + MESSAGE.pack(b"took", 0, took_s)
    assert "says a burst took" in str(scold(script, measure_sending))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([measure_sending, measure_receiving]))
def test_no_bytes_do_any_harm(data: bytes, measure: Measure) -> None:
    with pair() as (a, b):
        b.sendall(data)
        b.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerError):
            measure(a, Deadline.after(60))
