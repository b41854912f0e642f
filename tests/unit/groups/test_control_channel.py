"""Which rank is blamed when a deadline is over; no wake-up is lost."""

from __future__ import annotations

import socket
import time
from typing import cast

import pytest

from ringleader.errors import GroupAborted
from ringleader.groups.control_channel import ControlChannel
from ringleader.transport.memory_link import socket_pair
from ringleader.wire import header


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def begin(channels: list[ControlChannel], sequence: int) -> None:
    call = header.Header(operation="barrier", group=7, sequence=sequence, count=0)
    for channel in channels:
        channel.begin(sequence, header.encode(call))


def test_a_rank_that_waits_itself_is_not_blamed_although_its_machine_is_busy(
    clock: Clock,
) -> None:
    """Rank 2 waits for 0, which waits for 1, which is stopped. Was: rank 2 blamed rank
    0 if a busy machine had kept that from saying for 0.5 s that it waits."""
    here, there = socket_pair()
    zero, two = ControlChannel.open(0, {2: there}), ControlChannel.open(2, {0: here})
    begin([zero, two], 5)
    assert two.suspect([0]) == 0, "it may be late itself"
    zero.ask([1])
    zero.progress()
    two.progress()
    assert two.suspect([0]) == 1
    clock.now_s += 1.5
    assert two.suspect([0]) == 1
    clock.now_s += 1.5
    assert two.suspect([0]) == 0, "that was too long ago"

    zero.ask([1])
    zero.progress()
    two.progress()
    begin([two], 6)
    assert two.suspect([0]) == 1, "it is still in the call before"
    clock.now_s += 0.7
    assert two.suspect([0]) == 0, "it may have begun the next call"
    zero.close()
    two.close()


class AbortedMeanwhile:
    """The waking end of a channel that another thread aborts as it is read."""

    def __init__(self) -> None:
        self.channel: ControlChannel | None = None

    def recv(self, size: int) -> bytes:
        assert self.channel is not None
        self.channel.aborted = GroupAborted("enough")
        return b"!"[:size]


def test_an_abort_is_seen_although_its_wake_up_was_taken_with_another() -> None:
    """Was: the flag was read first, so that such a call slept for a whole nap."""
    waking = AbortedMeanwhile()
    sockets = socket_pair()
    channel = ControlChannel(0, {}, (cast("socket.socket", waking), sockets[1]))
    waking.channel = channel
    with pytest.raises(GroupAborted):
        channel.progress()
    for each in sockets:
        each.close()
