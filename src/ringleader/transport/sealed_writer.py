"""SealedWriter sends a stream in sealed records, also behind the caller's back."""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringleader.transport.sealed_reader import BUFFER_BYTES, SMALL_BYTES
from ringleader.transport.sending_thread import SendingThread
from ringleader.wire.sealed_record import (
    HEADER,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    OVERHEAD_BYTES,
)

if TYPE_CHECKING:  # plain groups do not need cryptography
    from ringleader.identity.record_cipher import RecordCipher

BEHIND_BYTES = 1 << 20
"""Most data that waits for the thread that sends."""
PAUSE_S = 0.0005
"""A thread seals and sends what it has been given in about this time."""
STOP_S = 5.0
"""Limit of the wait for a thread that never waits itself."""


class SealedWriter:
    """Seals and sends; ``send_raw`` sends like a non-blocking socket.

    Bytes count as sent when all of their record is in the kernel, and two ranks that
    exchange chunks read only as far as they have sent. So a record must fit into
    ``buffer_bytes()``, the memory of the kernel for this socket, which may change.
    Linux enlarges it only for a sender that fills it, so as many short records are
    offered at once as one long record holds.

    After ``use_thread`` a thread of its own can do so while the caller goes on. Whoever
    runs ``_work`` has the cipher, the records and the socket; the caller does so only
    while that thread is idle, and nobody else starts it.
    """

    def __init__(
        self,
        cipher: RecordCipher,
        send_raw: Callable[[memoryview], int],
        buffer_bytes: Callable[[], int],
    ) -> None:
        self._cipher = cipher
        self._send_raw = send_raw
        self._buffer_bytes = buffer_bytes
        self._buffer = memoryview(bytearray(SMALL_BYTES))
        self._sealed = self._buffer[:0]
        """The rest of the sealed records that are being sent."""
        self._records: deque[tuple[int, int]] = deque()
        """(sealed bytes behind it, bytes of its data) for every record in there."""
        self._pieces: deque[memoryview] = deque()
        """Data of the next records."""
        self._queued = self._left = self._counted = 0
        """Bytes given to us, gone with their record, and counted as sent, in total."""
        self._is_full = False
        """True if the kernel took nothing when it was last tried."""
        self._error: BaseException | None = None
        self._thread: SendingThread | None = None

    def use_thread(self) -> None:
        """Allow ``send`` to work behind its caller."""
        if self._thread is None:
            self._thread = SendingThread(self._work_in_thread)

    @property
    def owes(self) -> bool:
        """True if bytes are on their way that have not been counted as sent."""
        return self._queued > self._counted

    def send(self, view: memoryview, *, behind: bool = False) -> int:
        """Send what can be sent; return how many bytes have left with their record.

        With ``behind`` the thread sends, and reads ``view`` until later calls have
        counted it.
        """
        size, done = len(view), 0
        thread = self._thread
        behind = thread is not None and (behind or thread.is_busy)
        while True:
            taken = min(self._left - self._counted, size - done)
            self._counted += taken
            done += taken
            if done == size:
                return done
            if self._error is not None:
                if done:
                    return done
                raise self._error
            self._queue(view[done:], BEHIND_BYTES if behind else MAX_RECORD_BYTES)
            before = self._left
            if behind:
                self._work_behind()
            else:
                self._work()
            if self._left == before and self._error is None:
                return done

    def _queue(self, view: memoryview, limit: int) -> None:
        """Queue what is not queued yet of the first ``limit`` bytes."""
        ahead, view = self._queued - self._counted, view[:limit]
        longest = MIN_RECORD_BYTES
        if len(view) - ahead > longest:  # the kernel counts more than the data
            longest = max(longest, min(MAX_RECORD_BYTES, self._buffer_bytes() // 2))
        while ahead < len(view):
            piece = view[ahead : ahead + longest]
            self._pieces.append(piece)
            self._queued += len(piece)
            ahead += len(piece)

    def _work(self) -> None:
        """Seal and send until all has left or the kernel takes no more."""
        self._is_full = False
        try:
            while self._sealed or self._seal_some():
                self._send_some()
        except BlockingIOError:
            self._is_full = True
        except OSError as exc:
            self._error = exc

    def _work_in_thread(self) -> None:
        try:
            self._work()
        except BaseException as exc:  # noqa: BLE001 - raised by the next ``send``
            self._error = exc

    def _work_behind(self) -> None:
        """Let the thread work. If the kernel was full, try here whether it still is."""
        assert self._thread is not None
        if self._thread.is_busy:
            return
        if self._is_full and self._sealed:
            try:
                self._send_some()
            except BlockingIOError:
                return
            except OSError as exc:
                self._error = exc
                return
        if self._sealed or self._pieces:
            self._thread.start()

    def _send_some(self) -> None:
        self._sealed = self._sealed[self._send_raw(self._sealed) :]
        while self._records and len(self._sealed) <= self._records[0][0]:
            self._left += self._records.popleft()[1]

    def _seal_some(self) -> bool:
        """Seal the next pieces, as many as fit; return False if there are none."""
        self._make_room()
        ends: list[tuple[int, int]] = []
        at = 0
        while data := self._next_piece(len(self._buffer) - at):
            end = at + len(data) + OVERHEAD_BYTES
            self._seal(data, self._buffer[at:end])
            ends.append((end, len(data)))
            at = end
        self._records.extend((at - end, size) for end, size in ends)
        self._sealed = self._buffer[:at]
        return at > 0

    def _make_room(self) -> None:
        """Use a large buffer from the first long record, or several, on."""
        first = self._next_piece(MAX_RECORD_BYTES + OVERHEAD_BYTES)
        if first is None or len(self._buffer) == BUFFER_BYTES:
            return
        if len(self._pieces) > 1 or len(first) + OVERHEAD_BYTES > len(self._buffer):
            self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def _next_piece(self, room: int) -> memoryview | None:
        """Return the next piece if its record fits into ``room``."""
        try:
            piece = self._pieces[0]
        except IndexError:  # also if ``stop`` was faster
            return None
        return piece if len(piece) + OVERHEAD_BYTES <= room else None

    def _seal(self, data: memoryview, record: memoryview) -> None:
        """Seal the next piece.

        It is dropped last: if we are interrupted, what follows does not open.
        """
        header = HEADER.pack(len(data))
        record[:HEADER_BYTES] = header
        self._cipher.seal(data, header, record[HEADER_BYTES:])
        with contextlib.suppress(IndexError):  # if ``stop`` was faster
            self._pieces.popleft()

    def has_moved(self) -> bool:
        """Return whether ``send`` may do more, without waiting for the kernel.

        While the thread is busy, wait for it a moment.
        """
        if self._thread is None or not self.owes:
            return False
        self._thread.wait(PAUSE_S)
        return self._thread.is_busy or not self._is_full

    def stop(self) -> None:
        """Read no more of the views that were given. The stream ends here."""
        if self._thread is not None and self.owes:
            self._pieces.clear()
            self._thread.wait(STOP_S)
            text = "its operation failed half way"
            self._error = ConnectionAbortedError(errno.ECONNABORTED, text)

    def close(self) -> None:
        """End our thread. The socket may be closed after that."""
        self.stop()
        if self._thread is not None:
            self._thread.close()
