"""Signals and a byte stream between two ranks of one host, through shared memory.

A ShmPeer is a peer whose segment is mapped here. Signals are semaphores in the
segments. A sleeping rank raises a flag and is woken by a byte on the doorbell, a Unix
socket whose end also tells that the peer died. Where the system has no process-shared
semaphores, every signal is a byte on the doorbell, and the kernel orders memory.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from ringleader.errors import PeerLost, ProtocolError
from ringleader.transport.link import POLLIN, lost
from ringleader.transport.shm_segment import (
    NUM_SIGNALS,
    PAGE,
    RING,
    Geometry,
    Segment,
    Signal,
    announcements,
    semaphore,
)

SLEEP_FLAG = 64
_RING = NUM_SIGNALS
"""The doorbell byte that only wakes the peer."""


class ShmPeer:
    """One peer on this host. Use it from one thread at a time, like a link."""

    def __init__(
        self,
        doorbell: socket.socket,
        ranks: tuple[int, int],
        segments: tuple[Segment, Segment],
        geometry: Geometry,
    ) -> None:
        """Store both ends; ``ranks`` and ``segments`` are (ours, the peer's)."""
        self.me, self.peer = ranks
        self.mine, self.theirs = segments
        self.geometry = geometry
        self.doorbell = doorbell
        self._my_flag = self.mine.view[SLEEP_FLAG : SLEEP_FLAG + 1]
        self._their_flag = self.theirs.view[SLEEP_FLAG : SLEEP_FLAG + 1]
        self._heard = [0] * NUM_SIGNALS
        self.has_semaphores = bool(self.mine.view[16] and self.theirs.view[16])
        self._out_ring = announcements(self.mine, geometry, self.peer)
        self._in_ring = announcements(self.theirs, geometry, self.me)
        self._announcements = self._hearings = 0
        self.post: list[Callable[[], None]] = []
        """``post[signal]()`` sends a signal to the peer."""
        self.take: list[Callable[[bool], bool]] = []
        """``take[signal](False)`` returns True once for every signal of the peer."""
        for signal in Signal:
            make = (
                self._through_semaphore
                if self.has_semaphores
                else self._through_doorbell
            )
            post, take = make(signal)
            self.post.append(post)
            self.take.append(take)

    def _through_semaphore(
        self, signal: Signal
    ) -> tuple[Callable[[], None], Callable[[bool], bool]]:
        release, _ = semaphore(self.mine, self.geometry, self.peer, signal)
        _, acquire = semaphore(self.theirs, self.geometry, self.me, signal)
        flag, ring = self._their_flag, self.ring

        def post() -> None:
            release()
            if flag[0]:
                ring()

        return post, acquire

    def _through_doorbell(
        self, signal: Signal
    ) -> tuple[Callable[[], None], Callable[[bool], bool]]:
        byte, heard, hear = bytes([signal]), self._heard, self.hear

        def post() -> None:
            self._send_byte(byte)

        def take(_block: bool) -> bool:
            if not heard[signal]:
                hear()
            if not heard[signal]:
                return False
            heard[signal] -= 1
            return True

        return post, take

    def ring(self) -> None:
        """Wake the peer if it sleeps; signals it has not taken yet are not lost."""
        self._send_byte(bytes([_RING]))

    def _send_byte(self, byte: bytes) -> None:
        try:
            self.doorbell.send(byte)
        except BlockingIOError:
            # The peer has thousands of unread bytes and wakes anyway. But without
            # semaphores each byte is a signal, which must not be dropped.
            if byte[0] != _RING:
                raise PeerLost(self.peer, "stopped reading its doorbell") from None
        except OSError:
            # The peer is gone and needs no signal. It may have finished its work; if
            # not, the error appears when we wait for it.
            pass

    def hear(self) -> None:
        """Empty the doorbell; raise PeerLost if the peer is gone."""
        try:
            data = self.doorbell.recv(4096)
        except BlockingIOError:
            return
        except OSError as exc:
            raise lost(self.peer, exc) from exc
        if not data:
            raise PeerLost(self.peer, "closed the connection")
        if not self.has_semaphores:
            for signal in Signal:
                self._heard[signal] += data.count(signal)

    def hear_unless(self, ready: Callable[[], bool]) -> bool:
        """Empty the doorbell and return ``ready()``.

        A peer may signal and leave at once, so its end is an error only if what we wait
        for did not arrive before it.
        """
        try:
            self.hear()
        except PeerLost:
            if ready():
                return True
            raise
        return ready()

    def announce(self, number: int) -> None:
        """Tell the peer which one-way slot the next ONEWAY signal is about."""
        self._out_ring[self._announcements % RING] = number
        self._announcements += 1

    def announced(self) -> int:
        """Return the slot that the ONEWAY signal just taken is about."""
        number = self._in_ring[self._hearings % RING]
        self._hearings += 1
        return number

    def arm(self) -> None:
        """Ask the peer to ring when it signals; check once more before you sleep."""
        self._my_flag[0] = 1

    def disarm(self) -> None:
        """End ``arm``."""
        self._my_flag[0] = 0

    def close(self) -> None:
        """Close the doorbell, whose end the peer sees; no signal can be sent after."""
        self.doorbell.close()
        # They refer to this object, which would keep both segments mapped until the
        # cyclic garbage collector runs.
        self.post.clear()
        self.take.clear()


class ShmLink:
    """A byte stream to a ShmPeer through slots in both segments.

    Each slot is one page with the length of its content, then the content. FULL and
    FREE signals pass slots back and forth, so a slot is never read and written at once.
    """

    kind = "shm"
    sends_behind = False

    def __init__(self, shm_peer: ShmPeer) -> None:
        self.peer = shm_peer.peer
        self.shm_peer = shm_peer
        geometry = shm_peer.geometry
        self._out = _slots(shm_peer.mine, geometry, shm_peer.peer)
        self._in = _slots(shm_peer.theirs, geometry, shm_peer.me)
        self._num = geometry.num_streams
        self._free = geometry.num_streams
        self._sent = self._received = 0
        self.sent_bytes = self.received_bytes = 0
        """See Link."""
        self._left = memoryview(b"")
        self._take_full = shm_peer.take[Signal.FULL]
        self._take_free = shm_peer.take[Signal.FREE]
        self._post_full = shm_peer.post[Signal.FULL]
        self._post_free = shm_peer.post[Signal.FREE]

    def try_send_behind(self, view: memoryview) -> int:
        """See Link."""
        return self.try_send(view)

    def stop_sending(self) -> None:
        """See Link."""

    def try_send(self, view: memoryview) -> int:
        """See Link. Copies into the next free slot."""
        if not len(view):
            return 0  # an empty slot would violate the protocol
        ready = self._has_free
        if not ready() and not self.shm_peer.hear_unless(ready):
            return 0
        length, content = self._out[self._sent % self._num]
        size = min(len(view), len(content))
        content[:size] = view[:size]
        length[0] = size
        self._free -= 1
        self._sent += 1
        self.sent_bytes += size
        self._post_full()
        return size

    def try_recv_into(self, view: memoryview) -> int:
        """See Link. Copies out of the oldest filled slot."""
        ready = self._has_content
        if not ready() and not self.shm_peer.hear_unless(ready):
            return 0
        size = min(len(view), len(self._left))
        view[:size] = self._left[:size]
        self._left = self._left[size:]
        self.received_bytes += size
        if not self._left:
            self._received += 1
            self._give_back()
        return size

    def _give_back(self) -> None:
        """Tell the peer that its slot is free; a peer that is gone needs no signal.

        The next call that finds nothing to read reports the end: data that arrived
        before it still counts.
        """
        try:
            self._post_free()
        except PeerLost:
            return

    def _has_free(self) -> bool:
        if not self._free and self._take_free(False):
            self._free = 1
        return self._free > 0

    def _has_content(self) -> bool:
        if not self._left and self._take_full(False):
            length, content = self._in[self._received % self._num]
            size = length[0]  # read once: the peer could change it meanwhile
            if not 0 < size <= len(content):
                raise ProtocolError(self.peer, f"wrote {size} bytes into one slot")
            self._left = content[:size]
        return len(self._left) > 0

    def arm(self, *, sending: bool, receiving: bool) -> list[tuple[int, int]] | None:
        """See Link. Checks again after raising the flag, or a signal could be
        missed."""
        self.shm_peer.arm()
        try:
            if (receiving and self._has_content()) or (sending and self._has_free()):
                return None
        except PeerLost:
            return None  # the next call raises it
        return [(self.shm_peer.doorbell.fileno(), POLLIN)]

    def disarm(self) -> None:
        """See Link."""
        self.shm_peer.disarm()

    def close(self) -> None:
        """See Link."""
        self.shm_peer.close()


def _slots(
    segment: Segment, geometry: Geometry, to: int
) -> list[tuple[memoryview, memoryview]]:
    """Return (length, content) of each slot of the stream in ``segment`` for ``to``."""
    stride = PAGE + geometry.stream_bytes
    start = geometry.streams_at + to * geometry.num_streams * stride
    slots = []
    for i in range(geometry.num_streams):
        at = start + i * stride
        length = segment.view[at : at + 8].cast("Q")
        slots.append((length, segment.view[at + PAGE : at + stride]))
    return slots
