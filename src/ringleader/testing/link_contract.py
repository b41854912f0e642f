"""Checks of the contract that every implementation of Link must fulfil.

    check_link(make_pair)

``make_pair()`` returns the two ends of a new link: the peer of the left end is
``RIGHT``, that of the right end ``LEFT``. A violation raises an AssertionError that
describes it. No test framework is needed; ``CHECKS`` lists the single checks, for one
test per check.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ringleader.deadline import Deadline
from ringleader.testing.link_driver import (
    SIZES,
    WAIT_S,
    Stream,
    expect_lost,
    expect_nothing,
    fill,
    has_work,
    is_ready,
    noise,
    receive,
    receive_and_count,
    rest,
    send,
    try_until,
    wait_for_bytes,
)
from ringleader.transport.link import Link

LEFT, RIGHT = 0, 1

MakePair = Callable[[], tuple[Link, Link]]
Check = Callable[[Link, Link], None]

LIMIT_S = 300.0
"""Time limit of one check. None takes more than a second unless the link blocks."""


def check_link(make_pair: MakePair) -> None:
    """Run every check on links made by ``make_pair``."""
    for check in CHECKS:
        run_check(check, make_pair)


def run_check(check: Check, make_pair: MakePair) -> None:
    """Run one check on a new pair, in a thread, so that a blocking link fails too."""
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
    """Each end knows the rank of its peer and the kind of the link."""
    assert left.peer == RIGHT, f"the left end says its peer is {left.peer}, not {RIGHT}"
    assert right.peer == LEFT, (
        f"the right end says its peer is {right.peer}, not {LEFT}"
    )
    assert left.kind, "the kind of the link is empty"
    assert left.kind == right.kind, f"{left.kind} on one end, {right.kind} on the other"


def bytes_arrive_in_order_both_ways_at_once(left: Link, right: Link) -> None:
    """Bytes arrive in order for many sizes, split differently on send and receive."""
    there, back = noise(sum(SIZES), seed=1), noise(sum(SIZES), seed=2)
    streams = [Stream(left, right, there, 3), Stream(right, left, back, 4)]
    deadline = Deadline.after(LIMIT_S / 2)
    while not all(stream.is_done() for stream in streams):
        assert not deadline.is_over(), "the bytes did not arrive in time"
        moved = [stream.move() for stream in streams]
        if not any(moved):
            rest(streams)
    for stream in streams:
        assert stream.received == stream.data, "bytes were lost, changed or reordered"
    expect_nothing(left)
    expect_nothing(right)


def a_full_link_takes_nothing_and_wakes_when_drained(left: Link, right: Link) -> None:
    """try_send returns 0 on a full link; a read at the other end makes room."""
    data = memoryview(noise(1 << 20, seed=5))
    sent, wanted = fill(left, data)
    following = memoryview(bytes(data) * 2)[sent % len(data) :][: len(data)]
    received = receive(right, sent)
    # An encrypted link may take bytes of a record that it cannot hand out yet.
    room = memoryview(bytearray(len(data)))
    received += bytes(room[: right.try_recv_into(room)])
    assert is_ready(wanted, WAIT_S), "reading on the other end did not wake the sender"
    left.disarm()
    more = try_until(left.try_send, following, WAIT_S)
    assert more, "the link has room, but try_send returned 0"
    received += receive(right, max(0, sent + more - len(received)))
    whole = bytes(data) * (len(received) // len(data) + 1)
    same = received == whole[: len(received)]
    assert same, "bytes sent while the link filled up were lost or changed"


def an_empty_link_gives_nothing(left: Link, right: Link) -> None:
    """try_recv_into returns 0 on an empty link and writes nothing."""
    buffer = bytearray(b"untouched")
    for link in (left, right):
        for _ in range(3):
            assert link.try_recv_into(memoryview(buffer)) == 0, (
                "an empty link returned bytes"
            )
    assert buffer == b"untouched", "an empty link wrote into the buffer"


def empty_views_are_harmless(left: Link, right: Link) -> None:
    """An empty view transfers nothing and does not disturb the stream."""
    nothing = memoryview(bytearray())
    for link in (left, right):
        assert link.try_send(nothing) == 0, "an empty view was sent as bytes"
        assert link.try_recv_into(nothing) == 0, "bytes were put into an empty view"
    send(left, b"one")
    assert left.try_send(nothing) == 0, "an empty view was sent as bytes"
    send(left, b"two")
    wait_for_bytes(right)
    assert right.try_recv_into(nothing) == 0, "bytes were put into an empty view"
    assert receive(right, 6) == b"onetwo", "an empty view disturbed the stream"
    expect_nothing(right)


def an_armed_receiver_wakes_when_bytes_come(left: Link, right: Link) -> None:
    """arm returns descriptors that are not ready until the peer sends, every time.

    A caller tries to read before it sleeps, so the attempt may clear an old wake-up.
    """
    for turn in range(20):
        expect_nothing(right)
        wanted = right.arm(sending=False, receiving=True)
        assert wanted is not None, "arm(receiving=True) says an empty link has bytes"
        assert wanted, "arm returned no descriptor to wait for"
        assert not is_ready(wanted, 0.0), "the descriptors of an empty link are ready"
        send(left, bytes([turn]))
        assert is_ready(wanted, WAIT_S), "bytes came, but the armed receiver slept on"
        right.disarm()
        assert receive(right, 1) == bytes([turn]), "another byte than was sent"


def arming_with_work_at_hand_does_not_sleep(left: Link, right: Link) -> None:
    """arm returns None, or ready descriptors, if a send or receive would succeed."""
    assert has_work(left, sending=True, receiving=False), "an empty link has room"
    assert has_work(left, sending=True, receiving=True), "an empty link has room"
    assert not has_work(left, sending=False, receiving=True), "there is nothing to read"
    send(left, b"ab")
    wait_for_bytes(right)
    for _ in range(3):
        assert has_work(right, sending=False, receiving=True), "two bytes wait"
    assert receive(right, 1) == b"a", "another byte than was sent"
    assert has_work(right, sending=False, receiving=True), "one byte still waits"
    assert receive(right, 1) == b"b", "another byte than was sent"
    assert not has_work(right, sending=False, receiving=True), "nothing waits any more"


def two_threads_take_turns_without_missing_a_wake(left: Link, right: Link) -> None:
    """Both sides of a ping-pong sleep; every lost wake-up would cost a NAP_S."""
    turns, num_missed = 200, [0, 0]
    failures: list[BaseException] = []

    def echo() -> None:
        try:
            for _ in range(turns):
                ball, missed = receive_and_count(right, 3)
                num_missed[0] += missed
                send(right, ball)
        except BaseException as exc:  # noqa: BLE001 - raised again below
            failures.append(exc)

    thread = threading.Thread(target=echo, name="echo", daemon=True)
    thread.start()
    for turn in range(turns):
        ball = turn.to_bytes(3, "little")
        send(left, ball)
        found, missed = receive_and_count(left, 3)
        assert found == ball, "another ball came back"
        num_missed[1] += missed
    thread.join(WAIT_S)
    if failures:
        raise failures[0]
    assert max(num_missed) < turns / 4, f"{num_missed} of {turns} wake-ups were lost"


def what_was_sent_before_a_close_arrives(left: Link, right: Link) -> None:
    """Bytes sent before a close arrive, then every read raises PeerLost.

    The closing end was armed when it closed.
    """
    data = noise(200_001, seed=6)
    send(left, data)
    left.arm(sending=False, receiving=True)
    left.close()
    assert receive(right, len(data)) == data, "a close lost or changed what was sent"
    for _ in range(2):
        expect_lost(right.try_recv_into, LEFT)


def a_close_wakes_the_armed_receiver(left: Link, right: Link) -> None:
    """A receiver that sleeps on armed descriptors wakes when the peer closes."""
    wanted = right.arm(sending=False, receiving=True)
    assert wanted, "arm(receiving=True) says an empty link has bytes"
    left.close()
    assert is_ready(wanted, WAIT_S), "the peer closed, but the armed receiver slept on"
    right.disarm()
    assert has_work(right, sending=False, receiving=True), (
        "a closed peer must be reported by arm"
    )
    expect_lost(right.try_recv_into, LEFT)


def sending_to_a_closed_peer_ends(left: Link, right: Link) -> None:
    """Sends raise PeerLost, naming the peer, after at most what the link buffers."""
    left.close()
    expect_lost(right.try_send, LEFT)


def a_full_sender_hears_that_the_peer_closed(left: Link, right: Link) -> None:
    """A sender that waits for room gets PeerLost if the peer closes."""
    _, wanted = fill(left, memoryview(bytes(1 << 20)))
    right.close()
    assert is_ready(wanted, WAIT_S), "the peer closed, but the armed sender slept on"
    left.disarm()
    expect_lost(left.try_send, RIGHT)


def closing_twice_is_closing_once(left: Link, right: Link) -> None:
    """close is idempotent, whichever end closed first."""
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
