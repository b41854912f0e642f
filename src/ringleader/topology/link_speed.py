"""Measures the speed of a link over a connection that two nodes share.

Theory of operation. The two nodes take turns. The one whose turn it is first sends some
pings, which come straight back, and then bursts: each is announced with its length, and
answered with the time it took to arrive. Bursts grow until one takes long enough to be
reliable, so a slow link carries few bytes and a fast one enough. That burst is sent
twice and the better result counts, because a lost packet or a busy core can stall any.
If the nodes are far from each other, a burst has to take several round trips: until
then it shows how TCP begins, not how fast the link is.

The time of a burst is the longer of two. The receiver's begins when a quarter has
arrived: what fits in the buffers of switches and in the bucket of a shaper arrives
faster than the wire allows. The sender's ends with the answer: a receiver that did not
get a core in time finds everything in its own buffers, and would take that for speed.
At the end of a turn the sender tells its result, so both ends know the same figures.

Bounds, whatever the other side does: no more than ``MAX_BYTES`` and ``MAX_BURSTS`` per
turn, fixed memory, one deadline for everything. After an error the stream may be in the
middle of a burst: close the connection.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerLost, ProtocolError
from ringleader.topology.interface_kind import InterfaceKind
from ringleader.topology.link_profile import LinkProfile

FIRST_BYTES = 48 << 10
"""Small enough that 2 Mbit/s carry it in 0.2 s; a quarter of it fills the bucket of
a slow shaper, which holds a jumbo frame."""

GROWTH = 4
"""From 48 KiB to 3 MiB in four bursts; each of them costs a round trip."""

ENOUGH_S = 0.03
"""A burst of this duration is long compared with the scheduling of a busy machine."""

BURST_S = 0.1
"""The longest planned burst: a person waits for the sum of all of them."""

MANY_ROUND_TRIPS = 4
"""A burst that takes fewer is not reliable, either. Where that is longer than
``ENOUGH_S``, ``BURST_S`` is longer in proportion."""

GROWING_S = 1.0
"""After so long, round trips included, bursts do not grow any more."""

MAX_BYTES = 8 << 20
"""Bytes of one turn. 10 Gbit/s carry that in 7 ms; more would be hardly more exact."""

MAX_BURSTS = 16
"""Enough for two tries of each length."""

MAX_PINGS = 32
NUM_PINGS = 5

STEP_BYTES = 256 << 10
"""The most bytes that one call sends or receives, and all the memory that is used."""

PARTS = 16
MIN_PART_BYTES = 3 << 10
"""A burst is sent in so many parts, none smaller than this."""

MIN_S = 1e-6
"""The shortest time a burst can have taken; clocks are not more exact."""

MAX_RATE = 1e12
"""Bytes per second beyond any network; larger claims of a peer are refused."""

_MESSAGE = struct.Struct("!4sId")
_PING, _PONG, _BURST, _TOOK, _DONE = b"ping", b"pong", b"brst", b"took", b"done"


class MeasuredStream(Protocol):
    """Interface the measurement needs: a connected socket or ``ssl.SSLSocket``."""

    def send(self, data: memoryview, /) -> int: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def gettimeout(self) -> float | None: ...


def measure_sending(
    sock: MeasuredStream,
    deadline: Deadline,
    *,
    peer: str = "the peer",
    kind: InterfaceKind = InterfaceKind.UNKNOWN,
) -> LinkProfile:
    """Measure both directions, our turn first; the peer calls ``measure_receiving``.

    Takes 0.2 to 0.5 s on most links. After an error close the connection.
    """
    with _measurement(sock, deadline, peer) as wire:
        latency_s, out = wire.lead()
        return LinkProfile(latency_s, out, wire.follow(), kind)


def measure_receiving(
    sock: MeasuredStream,
    deadline: Deadline,
    *,
    peer: str = "the peer",
    kind: InterfaceKind = InterfaceKind.UNKNOWN,
) -> LinkProfile:
    """Measure both directions, the peer's turn first; it calls ``measure_sending``."""
    with _measurement(sock, deadline, peer) as wire:
        into = wire.follow()
        latency_s, out = wire.lead()
        return LinkProfile(latency_s, out, into, kind)


Try = tuple[int, float]
"""A burst: its bytes, and the seconds it took."""


def next_burst(tries: Sequence[Try], round_trip_s: float) -> int:
    """Return the bytes of the next burst; 0 when the last ones are reliable."""
    if not tries:
        return FIRST_BYTES
    size, best_s, num_tries = _last_size(tries)
    room = MAX_BYTES - sum(num_bytes for num_bytes, _ in tries)
    spent_s = sum(seconds for _, seconds in tries) + len(tries) * round_trip_s
    patience = max(1.0, MANY_ROUND_TRIPS * round_trip_s / ENOUGH_S)
    if best_s < ENOUGH_S * patience and spent_s < GROWING_S:
        fits = int(size / max(best_s, MIN_S) * BURST_S * patience)
        larger = min(size * GROWTH, fits, room // 2)  # there must be room for two
        if larger > size:
            return larger
    return size if num_tries < 2 and size <= room else 0


def _last_size(tries: Sequence[Try]) -> tuple[int, float, int]:
    """Return the length that was tried last, its best time, and its number of tries."""
    size = tries[-1][0]
    times = [seconds for num_bytes, seconds in tries if num_bytes == size]
    return size, min(times), len(times)


@contextlib.contextmanager
def _measurement(
    sock: MeasuredStream, deadline: Deadline, peer: str
) -> Iterator[_Measurement]:
    """Yield a measurement on a connection; translate foreign errors into ours."""
    before = sock.gettimeout()
    try:
        yield _Measurement(sock, deadline, peer)
        sock.settimeout(before)
    except TimeoutError as exc:
        text = f"the link was not measured within {deadline.after_s:.1f} s"
        raise DeadlineExceeded(peer, text) from exc
    except OSError as exc:  # also what ssl raises
        text = f"went away while the link was measured ({exc})"
        raise PeerLost(peer, text) from exc


class _Measurement:
    """One end of a measurement. Used by one thread, once."""

    def __init__(self, sock: MeasuredStream, deadline: Deadline, peer: str) -> None:
        self._sock = sock
        self._deadline = deadline
        self._peer = peer
        self._memory = memoryview(bytearray(STEP_BYTES))

    def lead(self) -> tuple[float, float]:
        """Our turn: return (seconds one way, bytes per second to the peer)."""
        latency_s = min(self._ping() for _ in range(NUM_PINGS)) / 2
        tries: list[Try] = []
        while size := next_burst(tries, 2 * latency_s):
            tries.append((size, self._burst(size, 2 * latency_s)))
        size, best_s, _ = _last_size(tries)
        rate = min(size / best_s, MAX_RATE)
        self._say(_DONE, value=rate)
        return latency_s, rate

    def follow(self) -> float:
        """The peer's turn: return bytes per second from the peer."""
        num_pings = num_bursts = spent = 0
        fastest = 0.0
        while True:
            kind, size, value = self._next()
            if kind == _PING and num_pings < MAX_PINGS:
                num_pings += 1
                self._say(_PONG)
            elif kind == _BURST and self._allows(size, spent, num_bursts):
                num_bursts, spent = num_bursts + 1, spent + size
                took_s = self._receive(size)
                fastest = max(fastest, min(size / took_s, MAX_RATE))
                self._say(_TOOK, value=took_s)
            elif kind == _DONE and 0 < value <= fastest:
                return value
            else:
                text = (
                    f"sent {kind!r} ({size}, {value:g}) in a measurement; not allowed"
                )
                raise ProtocolError(self._peer, text)

    def _burst(self, size: int, round_trip_s: float) -> float:
        """Send a burst; return the receiver's time, or ours if it is longer."""
        started_s = time.perf_counter()
        self._say(_BURST, size)
        self._send(size)
        took_s = self._hear(_TOOK)[1]
        if not MIN_S <= took_s <= self._deadline.after_s:
            raise ProtocolError(self._peer, f"says a burst took {took_s} s")
        return max(took_s, time.perf_counter() - started_s - round_trip_s)

    @staticmethod
    def _allows(size: int, spent: int, num_bursts: int) -> bool:
        return 0 < size <= MAX_BYTES - spent and num_bursts < MAX_BURSTS

    def _ping(self) -> float:
        started_s = time.perf_counter()
        self._say(_PING)
        self._hear(_PONG)
        return time.perf_counter() - started_s

    def _say(self, kind: bytes, size: int = 0, value: float = 0.0) -> None:
        self._send_all(memoryview(_MESSAGE.pack(kind, size, value)))

    def _hear(self, wanted: bytes) -> tuple[int, float]:
        kind, size, value = self._next()
        if kind != wanted:
            raise ProtocolError(self._peer, f"sent {kind!r} where {wanted!r} was due")
        return size, value

    def _next(self) -> tuple[bytes, int, float]:
        view = self._memory[: _MESSAGE.size]
        while view:
            view = view[self._recv_into(view) :]
        kind, size, value = _MESSAGE.unpack(self._memory[: _MESSAGE.size])
        return kind, size, value

    def _send(self, size: int) -> None:
        # In parts, because an encrypted connection hands out whole parts only, and the
        # receiver's time begins when a quarter has arrived.
        part = min(STEP_BYTES, max(MIN_PART_BYTES, size // PARTS))
        while size:
            view = self._memory[: min(size, part)]
            self._send_all(view)
            size -= len(view)

    def _send_all(self, view: memoryview) -> None:
        while view:
            self._sock.settimeout(self._left_s())
            view = view[self._sock.send(view) :]

    def _receive(self, size: int) -> float:
        """Receive a burst; return its time, extrapolated from its last three
        quarters."""
        started_s, started_at = time.perf_counter(), 0
        got = 0
        while got < size:
            got += self._recv_into(self._memory[: size - got])
            if not started_at and size // 4 <= got < size:
                started_s, started_at = time.perf_counter(), got
        took_s = time.perf_counter() - started_s
        return max(MIN_S, took_s * size / (size - started_at))

    def _recv_into(self, view: memoryview) -> int:
        self._sock.settimeout(self._left_s())
        got = self._sock.recv_into(view)
        if not got:
            raise PeerLost(self._peer, "hung up while the link was measured")
        return got

    def _left_s(self) -> float:
        left_s = self._deadline.left_s()
        if left_s <= 0:
            raise TimeoutError
        return left_s
