"""The process that carries the packets of a long cable; long_cable.py starts it.

Arguments: the two namespaces, the seconds of one way, and the rate in Mbit/s.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

DEVICE = "far0"
"""The interface of each host."""
MTU = 9000
QUEUE_S = 0.03
"""Time that packets may wait for the cable; a home router keeps about as much."""
IDLE_S = 1.0
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_BATCH = 64
"""Packets read from one side before the other side has its turn."""


@dataclass(slots=True)
class _Lane:
    """One direction: packets on their way, each with the moment of its arrival."""

    source: int
    target: int
    byte_s: float
    delay_s: float
    on_their_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    free_at_s: float = 0.0
    """When the cable takes the next packet."""

    def accept(self, now_s: float) -> None:
        """Read packets; drop those that would wait for too long."""
        for _ in range(_BATCH):
            try:
                packet = os.read(self.source, MTU + 100)
            except BlockingIOError:
                return
            begins_s = max(now_s, self.free_at_s)
            if begins_s - now_s <= QUEUE_S:
                self.free_at_s = begins_s + len(packet) * self.byte_s
                self.on_their_way.append((self.free_at_s + self.delay_s, packet))

    def deliver(self, now_s: float) -> float:
        """Write what has arrived; return the seconds until the next packet does."""
        while self.on_their_way and self.on_their_way[0][0] <= now_s:
            _, packet = self.on_their_way.popleft()
            with suppress(OSError):  # lost: the interface there is down
                os.write(self.target, packet)
        return self.on_their_way[0][0] - now_s if self.on_their_way else IDLE_S


def _open_tunnel(namespace: str) -> int:
    """Enter a namespace, and make the interface there."""
    import fcntl  # here, because Windows has none

    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        if libc.setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
    return end


def main() -> None:
    """Carry packets until the process that started this one has ended."""
    parent = os.getppid()
    namespaces, delay_s, mbit_s = sys.argv[1:3], float(sys.argv[3]), float(sys.argv[4])
    one, other = (_open_tunnel(each) for each in namespaces)
    lanes = {
        source: _Lane(source, target, 8e-6 / mbit_s, delay_s)
        for source, target in ((one, other), (other, one))
    }
    poll = select.poll()
    for source in lanes:
        poll.register(source, select.POLLIN)
    print("ready", flush=True)  # noqa: T201 - long_cable waits for it
    while os.getppid() == parent:
        now_s = time.perf_counter()
        wait_s = min(lane.deliver(now_s) for lane in lanes.values())
        # Rounded down to what poll counts in: a packet due within 1 ms is polled for.
        for source, _ in poll.poll(int(wait_s * 1e3)):
            lanes[source].accept(time.perf_counter())


if __name__ == "__main__":
    main()
