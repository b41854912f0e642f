"""What every link promises, as checks that any implementation can be put through.

    check_link(make_pair)

``make_pair()`` returns the two ends of a fresh link, ``LEFT`` and ``RIGHT``: the left end
says its peer is RIGHT, the right end that its peer is LEFT. Each check raises an
AssertionError with a sentence, and closes what it was given. No test framework is
needed; ``CHECKS`` lists the checks for those that want one test per promise.
"""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Callable

from ringleader.deadline import Deadline
from ringleader.errors import PeerLost
from ringleader.transport.link import POLLIN, POLLOUT, Link, wait_ready

LEFT, RIGHT = 0, 1

MakePair = Callable[[], tuple[Link, Link]]
Check = Callable[[Link, Link], None]

LIMIT_S = 20.0
"""For one check. None needs more than a second; a link that blocks needs for ever."""
NAP_S = 0.05
"""The longest sleep on armed descriptors: a link may miss a wake-up, as the engine's
waiter knows, but it then costs no more than this."""
MAX_BUFFERED_BYTES = 64 << 20
"""A link that takes more than this from nobody is not bounded."""
SIZES = (1, 2, 7, 63, 4095, 4096, 4097, 65536, 131072, 131073, 262143, 262145, 1048579)


def check_link(make_pair: MakePair) -> None:
    """Put links made by ``make_pair`` through every check."""
    for check in CHECKS:
        run_check(check, make_pair)


def run_check(check: Check, make_pair: MakePair) -> None:
    """One check on a fresh pair, in a thread of its own: a link that blocks fails too."""
    left, right = make_pair()
    failures: list[BaseException] = []

    def body() -> None:
        try:
            check(left, right)
        except BaseException as exc:  # noqa: BLE001 - raised again below
            failures.append(exc)

    thread = threading.Thread(target=body, name=check.__name__, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    is_stuck = thread.is_alive()
    left.close()
    right.close()
    assert not is_stuck, f"{check.__name__}: a call blocked for {LIMIT_S} s"
    if failures:
        raise failures[0]


# -- the checks --------------------------------------------------------------------


def ends_name_each_other(left: Link, right: Link) -> None:
    """Each end knows which rank is on the other, and what carries it."""
    assert left.peer == RIGHT, f"the left end says its peer is {left.peer}, not {RIGHT}"
    assert right.peer == LEFT, (
        f"the right end says its peer is {right.peer}, not {LEFT}"
    )
    assert left.kind, "a link says what carries it"
    assert left.kind == right.kind, f"{left.kind} on one end, {right.kind} on the other"


def bytes_arrive_in_order_both_ways_at_once(left: Link, right: Link) -> None:
    """Pieces of many sizes, cut differently on the way out and on the way in."""
    there, back = _noise(sum(SIZES), seed=1), _noise(sum(SIZES), seed=2)
    streams = [_Stream(left, right, there, 3), _Stream(right, left, back, 4)]
    deadline = Deadline.after(LIMIT_S / 2)
    while not all(stream.is_done() for stream in streams):
        assert not deadline.is_over(), "the bytes did not arrive in time"
        if not any([stream.move() for stream in streams]):
            _rest(streams)
    for stream in streams:
        assert stream.received == stream.data, "bytes were lost, changed or reordered"
    _expect_nothing(left)
    _expect_nothing(right)


def a_full_link_takes_nothing_and_wakes_when_drained(left: Link, right: Link) -> None:
    """try_send returns 0 instead of blocking; a read on the other end makes room."""
    data = memoryview(_noise(1 << 20, seed=5))
    sent = _fill(left, data)
    for _ in range(3):
        assert left.try_send(data) == 0, "a full link took bytes"
    wanted = left.arm(sending=True, receiving=False)
    assert wanted is not None, "arm(sending=True) says a full link has room"
    assert not _is_ready(wanted, 0.0), "the descriptors of a full link are ready"
    received = _receive(right, sent)
    assert _is_ready(wanted, 5.0), "reading on the other end did not wake the sender"
    left.disarm()
    assert _try_until(left.try_send, data[:100], 5.0) == 100, (
        "there is room, but no send"
    )
    received += _receive(right, 100)
    whole = (bytes(data) * (sent // len(data) + 1))[:sent] + bytes(data[:100])
    assert received == whole, "bytes sent while the link filled up were lost or changed"


def an_empty_link_gives_nothing(left: Link, right: Link) -> None:
    """try_recv_into returns 0 instead of blocking, and writes nothing."""
    buffer = bytearray(b"untouched")
    for link in (left, right):
        for _ in range(3):
            assert link.try_recv_into(memoryview(buffer)) == 0, (
                "bytes came from nowhere"
            )
    assert buffer == b"untouched", "an empty link wrote into the buffer"


def empty_views_are_harmless(left: Link, right: Link) -> None:
    """A view of no bytes moves none, whatever waits, and does not disturb the stream."""
    nothing = memoryview(bytearray())
    for link in (left, right):
        assert link.try_send(nothing) == 0, "an empty view was sent as bytes"
        assert link.try_recv_into(nothing) == 0, "bytes were put into an empty view"
    _send(left, b"one")
    assert left.try_send(nothing) == 0, "an empty view was sent as bytes"
    _send(left, b"two")
    _wait_for_bytes(right)
    assert right.try_recv_into(nothing) == 0, "bytes were put into an empty view"
    assert _receive(right, 6) == b"onetwo", "an empty view disturbed the stream"
    _expect_nothing(right)


def an_armed_receiver_wakes_when_bytes_come(left: Link, right: Link) -> None:
    """arm returns descriptors that are silent until the peer sends, every time.

    Who sleeps has tried before, so an old wake-up may be cleared by the try.
    """
    for turn in range(20):
        _expect_nothing(right)
        wanted = right.arm(sending=False, receiving=True)
        assert wanted is not None, "arm(receiving=True) says an empty link has bytes"
        assert wanted, "arm returned no descriptor to wait for"
        assert not _is_ready(wanted, 0.0), "the descriptors of an empty link are ready"
        _send(left, bytes([turn]))
        assert _is_ready(wanted, 5.0), "bytes came, but the armed receiver slept on"
        right.disarm()
        assert _receive(right, 1) == bytes([turn]), "another byte than was sent"


def arming_with_work_at_hand_does_not_sleep(left: Link, right: Link) -> None:
    """arm returns None, or descriptors that are ready, when a try would succeed."""
    assert _has_work(left, sending=True, receiving=False), "an empty link has room"
    assert _has_work(left, sending=True, receiving=True), "an empty link has room"
    assert not _has_work(left, sending=False, receiving=True), (
        "there is nothing to read"
    )
    _send(left, b"ab")
    _wait_for_bytes(right)
    for _ in range(3):
        assert _has_work(right, sending=False, receiving=True), "two bytes wait"
    assert _receive(right, 1) == b"a", "another byte than was sent"
    assert _has_work(right, sending=False, receiving=True), "one byte still waits"
    assert _receive(right, 1) == b"b", "another byte than was sent"
    assert not _has_work(right, sending=False, receiving=True), "nothing waits any more"


def two_threads_take_turns_without_missing_a_wake(left: Link, right: Link) -> None:
    """Ping-pong in which both sides sleep: a lost wake-up costs a nap, or for ever."""
    turns = 200
    failures: list[BaseException] = []

    def echo() -> None:
        try:
            for _ in range(turns):
                _send(right, _receive(right, 3))
        except BaseException as exc:  # noqa: BLE001 - raised again below
            failures.append(exc)

    thread = threading.Thread(target=echo, name="echo", daemon=True)
    start_s = time.monotonic()
    thread.start()
    for turn in range(turns):
        ball = turn.to_bytes(3, "little")
        _send(left, ball)
        assert _receive(left, 3) == ball, "another ball came back"
    thread.join(5.0)
    if failures:
        raise failures[0]
    took_s = time.monotonic() - start_s
    assert took_s < turns * NAP_S / 2, (
        f"{turns} round trips took {took_s:.1f} s of naps"
    )


def what_was_sent_before_a_close_arrives(left: Link, right: Link) -> None:
    """Then PeerLost, naming the peer, on every further read. The closer was asleep."""
    data = _noise(200_001, seed=6)
    _send(left, data)
    left.arm(sending=False, receiving=True)
    left.close()
    assert _receive(right, len(data)) == data, "a close lost or changed what was sent"
    for _ in range(2):
        _expect_lost(right.try_recv_into, LEFT)


def a_close_wakes_the_armed_receiver(left: Link, right: Link) -> None:
    """The end of the peer is news like any other."""
    wanted = right.arm(sending=False, receiving=True)
    assert wanted, "arm(receiving=True) says an empty link has bytes"
    left.close()
    assert _is_ready(wanted, 5.0), "the peer closed, but the armed receiver slept on"
    right.disarm()
    assert _has_work(right, sending=False, receiving=True), "the end is work at hand"
    _expect_lost(right.try_recv_into, LEFT)


def sending_to_a_closed_peer_ends(left: Link, right: Link) -> None:
    """PeerLost, naming the peer, after no more than the link can buffer."""
    left.close()
    _expect_lost(right.try_send, LEFT)


def a_full_sender_hears_that_the_peer_closed(left: Link, right: Link) -> None:
    """Nobody will ever make room: PeerLost instead of a wait without end."""
    _fill(left, memoryview(bytes(1 << 20)))
    wanted = left.arm(sending=True, receiving=False)
    assert wanted, "arm(sending=True) says a full link has room"
    right.close()
    assert _is_ready(wanted, 5.0), "the peer closed, but the armed sender slept on"
    left.disarm()
    _expect_lost(left.try_send, RIGHT)


def closing_twice_is_closing_once(left: Link, right: Link) -> None:
    """close is idempotent, whoever closed first."""
    for link in (left, right, left, right):
        link.close()


CHECKS: tuple[Check, ...] = (
    ends_name_each_other,
    bytes_arrive_in_order_both_ways_at_once,
    a_full_link_takes_nothing_and_wakes_when_drained,
    an_empty_link_gives_nothing,
    empty_views_are_harmless,
    an_armed_receiver_wakes_when_bytes_come,
    arming_with_work_at_hand_does_not_sleep,
    two_threads_take_turns_without_missing_a_wake,
    what_was_sent_before_a_close_arrives,
    a_close_wakes_the_armed_receiver,
    sending_to_a_closed_peer_ends,
    a_full_sender_hears_that_the_peer_closed,
    closing_twice_is_closing_once,
)


# -- what they are made of ---------------------------------------------------------


class _Stream:
    """One direction: ``data`` leaves in pieces of SIZES and arrives in other pieces."""

    def __init__(self, source: Link, to: Link, data: bytes, seed: int) -> None:
        self.source, self.to = source, to
        self.data, self.received = data, bytearray()
        self._sent = 0
        self._cuts = random.Random(seed)

    def is_done(self) -> bool:
        return len(self.received) >= len(self.data)

    def move(self) -> bool:
        """Send a piece, receive a piece; whether anything moved."""
        size = self._cuts.choice(SIZES)
        piece = memoryview(self.data)[self._sent : self._sent + size]
        sent = self.source.try_send(piece) if piece else 0
        assert 0 <= sent <= len(piece), f"sent {sent} of {len(piece)} bytes"
        self._sent += sent
        buffer = bytearray(self._cuts.choice(SIZES))
        received = self.to.try_recv_into(memoryview(buffer))
        assert 0 <= received <= len(buffer), f"received {received} of {len(buffer)}"
        assert not any(buffer[received:]), "wrote beyond what it said it received"
        self.received += buffer[:received]
        return bool(sent or received)


def _rest(streams: list[_Stream]) -> None:
    """Nothing moved: sleep until a receiver may go on."""
    wanted: list[tuple[int, int]] = []
    for stream in streams:
        armed = stream.to.arm(sending=False, receiving=True)
        wanted += armed or []
        if armed is None:
            wanted.clear()
            break
    if wanted:
        wait_ready(wanted, NAP_S)
    for stream in streams:
        stream.to.disarm()


def _noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def _is_ready(wanted: list[tuple[int, int]], timeout_s: float) -> bool:
    """Whether one of the descriptors becomes ready in time."""
    for _, events in wanted:
        assert events & (POLLIN | POLLOUT), f"nobody can wait for events {events}"
    readers = [fd for fd, events in wanted if events & POLLIN]
    writers = [fd for fd, events in wanted if events & POLLOUT]
    return any(select.select(readers, writers, [], timeout_s))


def _has_work(link: Link, *, sending: bool, receiving: bool) -> bool:
    wanted = link.arm(sending=sending, receiving=receiving)
    is_there = wanted is None or _is_ready(wanted, 0.0)
    link.disarm()
    return is_there


def _wait_for_bytes(link: Link) -> None:
    """Until reading would give something, without reading it."""
    deadline = Deadline.after(5.0)
    while not _has_work(link, sending=False, receiving=True):
        assert not deadline.is_over(), "bytes were sent, but nothing came"


def _sleep(link: Link, *, sending: bool) -> None:
    wanted = link.arm(sending=sending, receiving=not sending)
    if wanted:
        wait_ready(wanted, NAP_S)
    link.disarm()


def _try_until(
    attempt: Callable[[memoryview], int], view: memoryview, within_s: float
) -> int:
    """The first result that is not 0; 0 when none comes in time."""
    deadline = Deadline.after(within_s)
    while not (moved := attempt(view)) and not deadline.is_over():
        time.sleep(0.001)
    return moved


def _send(link: Link, data: bytes) -> None:
    view, deadline = memoryview(data), Deadline.after(5.0)
    while view:
        assert not deadline.is_over(), f"{len(view)} bytes could not be sent in 5 s"
        sent = link.try_send(view)
        view = view[sent:]
        if not sent:
            _sleep(link, sending=True)


def _receive(link: Link, size: int) -> bytes:
    data, deadline = bytearray(size), Deadline.after(10.0)
    view = memoryview(data)
    while view:
        assert not deadline.is_over(), f"{len(view)} of {size} bytes did not come"
        received = link.try_recv_into(view)
        view = view[received:]
        if not received:
            _sleep(link, sending=False)
    return bytes(data)


def _expect_nothing(link: Link) -> None:
    received = link.try_recv_into(memoryview(bytearray(1)))
    assert received == 0, "more bytes came than were sent"


def _fill(link: Link, data: memoryview) -> int:
    """Send ``data`` round and round until nothing goes any more; how much went."""
    total, quiet_since_s = 0, time.monotonic()
    while time.monotonic() - quiet_since_s < 0.1:
        sent = link.try_send(data[total % len(data) :])
        total += sent
        assert total <= MAX_BUFFERED_BYTES, "the link took more than it can hold"
        if sent:
            quiet_since_s = time.monotonic()
        else:
            time.sleep(0.001)  # the kernel may still be moving bytes to the other end
    return total


def _expect_lost(attempt: Callable[[memoryview], int], peer: int) -> None:
    """PeerLost naming ``peer``, after no more bytes than a link can buffer."""
    deadline, total = Deadline.after(5.0), 0
    view = memoryview(bytearray(65536))
    try:
        while not deadline.is_over() and total <= MAX_BUFFERED_BYTES:
            total += attempt(view)
    except PeerLost as exc:
        assert exc.peer == peer, f"rank {exc.peer} is blamed instead of rank {peer}"
        return
    raise AssertionError("the peer is gone, and nothing says so")
