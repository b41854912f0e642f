"""A lane of a long cable: packets arrive in order, later, no faster than its rate."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ringleader.simulation.lan.cable_carrier import QUEUE_S, _Lane

DELAY_S, BYTE_S, PACKET = 0.05, 1e-6, 1000
PACKET_S = PACKET * BYTE_S
LATE_S = 1e-9
"""Beside a moment that is reckoned in floating point."""


class Ends:
    """Both ends of a lane: packets go in here and come out there."""

    def __init__(self) -> None:
        self.into, source = socket.socketpair(type=socket.SOCK_DGRAM)
        target, self.out_of = socket.socketpair(type=socket.SOCK_DGRAM)
        self._kept = source, target
        for each in (source, self.out_of):
            each.setblocking(False)
        self.lane = _Lane(source.fileno(), target.fileno(), BYTE_S, DELAY_S)

    def send(self, number: int, now_s: float) -> None:
        self.into.send(bytes([number]) * PACKET)
        self.lane.accept(now_s)

    def arrived(self, now_s: float) -> list[int]:
        self.lane.deliver(now_s)
        found = []
        while True:
            try:
                found.append(self.out_of.recv(2 * PACKET)[0])
            except BlockingIOError:
                return found

    def close(self) -> None:
        for each in (self.into, self.out_of, *self._kept):
            each.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_packets_arrive_one_after_the_other_after_the_delay(ends: Ends) -> None:
    for number in range(3):
        ends.send(number, now_s=1.0)
    assert ends.arrived(1.0 + DELAY_S) == []
    for number in range(3):
        due_s = 1.0 + DELAY_S + (number + 1) * PACKET_S
        assert ends.arrived(due_s - LATE_S) == []
        assert ends.arrived(due_s + LATE_S) == [number]


def test_an_idle_cable_takes_a_packet_at_once(ends: Ends) -> None:
    ends.send(0, now_s=1.0)
    ends.send(1, now_s=2.0)
    assert ends.arrived(2.0 + DELAY_S + PACKET_S + LATE_S) == [0, 1]
    ends.send(2, now_s=3.0)
    assert ends.lane.deliver(3.0) == pytest.approx(DELAY_S + PACKET_S)


def test_what_would_wait_for_too_long_is_dropped(ends: Ends) -> None:
    fits = int(QUEUE_S / PACKET_S + 0.5) + 1
    for number in range(fits + 20):
        ends.send(number, now_s=1.0)
    after_s = 1.0 + DELAY_S + (fits + 20) * PACKET_S
    found = ends.arrived(after_s)
    assert found == list(range(len(found)))
    assert abs(len(found) - fits) <= 1, "as many as fit into the queue"
    ends.send(200, now_s=after_s)
    assert ends.arrived(after_s + DELAY_S + PACKET_S + LATE_S) == [200]
