"""SealedReader receives a stream of sealed records and opens them.

Records are large, so that one call of the cipher does the work of many TLS records.
Nothing is handed out before its tag has been verified.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringleader.wire.sealed_record import (
    HEADER,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    OVERHEAD_BYTES,
    TAG_BYTES,
    RecordForged,
)

if TYPE_CHECKING:  # plain groups do not need cryptography
    from ringleader.identity.record_cipher import RecordCipher

SMALL_BYTES = 16 << 10
"""Buffers begin at this size. At least so much is asked of the kernel at once, so that
small records come together."""
BUFFER_BYTES = MAX_RECORD_BYTES + OVERHEAD_BYTES + HEADER_BYTES
"""Room for the longest record and the header of the next."""


class SealedReader:
    """Receives and opens; ``recv_raw`` receives like a non-blocking socket.

    ``early``: bytes of the stream that were received together with the handshake.
    """

    def __init__(
        self,
        cipher: RecordCipher,
        recv_raw: Callable[[memoryview], int],
        early: bytes = b"",
    ) -> None:
        self._cipher = cipher
        self._recv_raw = recv_raw
        self._buffer = memoryview(bytearray(max(SMALL_BYTES, len(early))))
        self._buffer[: len(early)] = early
        self._start, self._end = 0, len(early)
        """The received bytes that have not been opened."""
        self._opened = self._buffer[:0]
        """Bytes of an opened record that did not fit the caller's buffer."""
        self._is_drained = False
        """True if the kernel had less than was asked for when it was last read."""
        self._why_broken = ""

    def has_pending(self) -> bool:
        """Return whether data is here already; polling would not tell."""
        return bool(self._opened) or self._is_whole() or bool(self._why_broken)

    def recv_into(self, view: memoryview) -> int:
        """Fill ``view`` as far as possible without waiting; return 0 at the end."""
        size, done = len(view), 0
        while done < size:
            if self._opened:
                done += self._hand_out(view[done:])
            elif self._is_whole():
                done += self._open(view[done:])
            elif self._why_broken:
                if done:
                    break  # what came before is good
                raise ConnectionResetError(errno.ECONNRESET, self._why_broken)
            elif (done and self._is_drained) or not self._fetch(has_some=done > 0):
                break
        return done

    def _length(self) -> int:
        """Return the length in the header of the next record, 0 if it is not here."""
        if self._end - self._start < HEADER_BYTES:
            return 0
        length: int = HEADER.unpack_from(self._buffer, self._start)[0]
        if not 0 < length <= MAX_RECORD_BYTES:
            self._why_broken = f"received a record of {length} bytes"
            return 0
        return length

    def _is_whole(self) -> bool:
        """Return whether all of the next record is here."""
        length = 0 if self._why_broken else self._length()
        return 0 < length <= self._end - self._start - OVERHEAD_BYTES

    def _open(self, view: memoryview) -> int:
        """Open the next record, into ``view`` if it fits and in place if it does not.

        Returns how many bytes it put into ``view``.
        """
        length, at = self._length(), self._start + HEADER_BYTES
        self._start = at + length + TAG_BYTES
        record = self._buffer[at : self._start]
        is_fit = length <= len(view)
        target = view[:length] if is_fit else record[:length]
        try:
            self._cipher.open(record, HEADER.pack(length), target)
        except RecordForged:
            self._why_broken = "received data failed its integrity check"
            return 0
        if is_fit:
            return length
        self._opened = target
        return 0

    def _hand_out(self, view: memoryview) -> int:
        taken = min(len(self._opened), len(view))
        view[:taken] = self._opened[:taken]
        self._opened = self._opened[taken:]
        return taken

    def _fetch(self, *, has_some: bool) -> bool:
        """Read from the kernel; return False at the end of the stream.

        An error is delayed until earlier data has been used (``has_some``).
        """
        asked = self._make_room()
        try:
            received = self._recv_raw(self._buffer[self._end : self._end + asked])
        except OSError:
            if has_some:
                return False
            raise
        self._end += received
        self._is_drained = received < asked
        return received > 0

    def _make_room(self) -> int:
        """Return how much to ask for: a long record and the next header, or a little.

        There is room for it behind what is here.
        """
        here, length = self._end - self._start, self._length()
        if not here:
            self._start = self._end = 0
        wanted = max(length + OVERHEAD_BYTES + HEADER_BYTES, SMALL_BYTES)
        if self._start + wanted > len(self._buffer):
            kept = self._buffer[self._start : self._end]
            self._start, self._end = 0, here
            if wanted > len(self._buffer):
                self._buffer = memoryview(bytearray(BUFFER_BYTES))
            self._buffer[:here] = kept
        return wanted - here
