"""Segment is memory shared by the ranks of one host, backed by a file without a name.

Layout of the segment of one rank in a group of n:
    page 0        0: incarnation (16 bytes), 16: signal mode, 64: sleep flag,
                  128: operations that the rank has issued (8 bytes)
    signals       n * NUM_SIGNALS semaphores, SEM_STRIDE bytes apart; those of
                  ``dst`` are posted by the owner and awaited by rank ``dst``
    areas         see Geometry: slots that only the owner fills, except where a
                  collective says otherwise
The file is an anonymous memfd (an unlinked temporary file where there is none), so a
killed process leaves nothing behind. Descriptors travel over a Unix socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

if sys.platform != "win32":
    import fcntl

PAGE = 4096
ISSUED_AT = 128
SEM_STRIDE = 128
"""Two cache lines, so that two semaphores never share one."""


RELAY_BYTES = 9 << 20
"""Memory of the relay slots of one host; every rank touches all of it."""
DEVICE_RELAY_BYTES = 32 << 20
"""The same if some rank has an accelerator, which copies by itself: the number of
copies matters then, not what fits a cache."""
HELPED_RELAY_BYTES = 20 << 20
"""The same if helper threads share the work, each with a cache of its own."""
SLOT_BYTES = 1 << 20
"""One slot of all ranks together; there are four for exchanges and four one-way."""
HELPED_SLOT_BYTES = 4 << 20
"""The same if helper threads share the copies."""
PER_THREAD_BYTES = 256 << 10
"""What each of these threads copies or adds at once."""


class Signal(IntEnum):
    """Signals that one rank can send to another without a message."""

    POST = 0  # a slot of mine is filled for you
    TURN = 1  # I have done a turn of a relay
    CREDIT = 2  # I have read your one-way slot
    FULL = 3  # a slot of my stream to you is filled
    FREE = 4  # I have emptied a slot of your stream
    ONEWAY = 5  # a one-way slot of mine is filled for you


NUM_SIGNALS = len(Signal)
RING = 16
"""Announcements kept per destination; more than there are one-way slots."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Offsets and sizes in every segment of a group of ``size`` ranks."""

    size: int
    num_exchanges: int = 4
    num_oneways: int = 4
    stream_bytes: int = 128 << 10
    num_streams: int = 8

    @property
    def num_relay_slots(self) -> int:
        """Number of relay slots; engine/shared_memory/relay.py explains it."""
        return 3 if self.size == 2 else self.size + 2

    @property
    def part_bytes(self) -> int:
        """Bytes of one part of a relay.

        256 to 512 KiB are within 5 % of each other where the L2 cache has 2 MiB;
        smaller parts cost Python time, larger ones cache misses. With many ranks the
        memory is the limit.
        """
        return self._part(256 << 10, RELAY_BYTES)

    @property
    def device_part_bytes(self) -> int:
        """The same if some rank has an accelerator: the room of a relay slot."""
        return self._part(1 << 20, DEVICE_RELAY_BYTES)

    def helped_part_bytes(self, num_threads: int) -> int:
        """Return the same if ``num_threads`` threads of each rank share the work."""
        most = min(num_threads * PER_THREAD_BYTES, self.device_part_bytes)
        return self._part(most, HELPED_RELAY_BYTES)

    def _part(self, most: int, memory: int) -> int:
        touched = self.size * self.num_relay_slots
        return max(PAGE, min(most, memory // touched // PAGE * PAGE))

    @property
    def slot_bytes(self) -> int:
        """Bytes in an exchange slot or a one-way slot; a rank may read those of all."""
        return max(PAGE, SLOT_BYTES // self.size // PAGE * PAGE)

    def helped_slot_bytes(self, num_threads: int) -> int:
        """Return the same if ``num_threads`` threads of each rank share the copies."""
        return max(self.slot_bytes, min(num_threads * PER_THREAD_BYTES, self._room))

    @property
    def _room(self) -> int:
        return max(PAGE, HELPED_SLOT_BYTES // self.size // PAGE * PAGE)

    @property
    def slot_stride(self) -> int:
        """Distance of these slots: a header page, then room for the largest content."""
        return PAGE + self._room

    @property
    def signals_at(self) -> int:
        """Offset of the semaphores."""
        return PAGE

    def relay_slot_at(self, number: int) -> int:
        """Return the offset of a relay slot: a header page, then room for one part."""
        signals = self.size * NUM_SIGNALS * SEM_STRIDE
        start = self.signals_at + -(-signals // PAGE) * PAGE
        return start + number * (PAGE + self.device_part_bytes)

    @property
    def exchanges_at(self) -> int:
        """Offset of the exchange slots."""
        return self.relay_slot_at(self.num_relay_slots)

    @property
    def oneways_at(self) -> int:
        """Offset of the one-way slots."""
        return self.exchanges_at + self.num_exchanges * self.slot_stride

    @property
    def streams_at(self) -> int:
        """Offset of the byte streams, one run of slots per destination."""
        return self.oneways_at + self.num_oneways * self.slot_stride

    @property
    def total_bytes(self) -> int:
        """Length of the file. It is sparse: only used pages take memory."""
        stream = self.num_streams * (PAGE + self.stream_bytes)
        return self.streams_at + self.size * stream


def _anonymous_file() -> int:
    """Return a descriptor of a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ringleader", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Segment:
    """One mapped segment. It is not thread-safe by itself; see the engine."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.mapping = mapping
        self.bytes: NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8)
        self.view = memoryview(mapping)
        self.address = int(self.bytes.ctypes.data)
        self.num_issued = self.view[ISSUED_AT : ISSUED_AT + 8].cast("Q")
        """One number: the operations that its rank has issued; see
        groups/postponed_calls.py."""


def create(geometry: Geometry, incarnation: bytes) -> tuple[int, Segment]:
    """Make a segment; return its descriptor and mapping.

    The caller closes the descriptor once all peers have it.
    """
    fd = _anonymous_file()
    os.ftruncate(fd, geometry.total_bytes)
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    segment = Segment(mmap.mmap(fd, geometry.total_bytes))
    segment.view[:16] = incarnation
    segment.view[16] = int(_init_semaphores(geometry, segment))
    return fd, segment


def attach(fd: int, geometry: Geometry, incarnation: bytes) -> Segment:
    """Map the segment behind ``fd``; OSError if it is not what a peer would send."""
    if os.fstat(fd).st_size != geometry.total_bytes:
        raise OSError("the segment has another size")
    if sys.platform == "linux":
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK:
            raise OSError("the segment is not sealed against shrinking")
    segment = Segment(mmap.mmap(fd, geometry.total_bytes))
    if bytes(segment.view[:16]) != incarnation:
        raise OSError("the segment belongs to another process")
    return segment


def _init_semaphores(geometry: Geometry, segment: Segment) -> bool:
    """Make the semaphores in the segment; return False if the system has none."""
    with contextlib.suppress(OSError, AttributeError, ImportError):
        from _multiprocessing import SemLock  # noqa: F401

        sem_init = ctypes.CDLL(None, use_errno=True).sem_init
        for i in range(geometry.size * NUM_SIGNALS):
            where = segment.address + geometry.signals_at + i * SEM_STRIDE
            if sem_init(ctypes.c_void_p(where), 1, 0) != 0:
                return False
        return True
    return False


def semaphore(
    segment: Segment, geometry: Geometry, dst: int, signal: Signal
) -> tuple[Callable[[], None], Callable[[bool], bool]]:
    """Return (release, acquire) of one semaphore in ``segment``.

    ``_multiprocessing.SemLock`` is the C object behind multiprocessing.Semaphore. Given
    an address instead of a name it drives an unnamed process-shared semaphore, at 50 ns
    per call where ctypes needs 600. POSIX makes both calls memory barriers, which keeps
    slots and signals in order on every processor.
    """
    from _multiprocessing import SemLock

    index = dst * NUM_SIGNALS + signal
    where = segment.address + geometry.signals_at + index * SEM_STRIDE
    lock = SemLock._rebuild(where, 1, 2**30, None)
    return lock.release, lock.acquire


def announcements(segment: Segment, geometry: Geometry, dst: int) -> memoryview:
    """Return the ring of slot numbers for ``dst``, stored beside its ONEWAY
    semaphore."""
    index = dst * NUM_SIGNALS + Signal.ONEWAY
    at = geometry.signals_at + index * SEM_STRIDE + 64
    return segment.view[at : at + RING]
