"""The TLS 1.3 stream of a connection, over a non-blocking socket.

OpenSSL works on memory buffers here and never sees the socket. So one system call can
read many records, a write may stop anywhere, and the handshake proceeds by one step
whenever somebody reads or writes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

SEAL_BYTES = 64 << 10
"""Bytes encrypted at once, four records: few enough that little remains unsent, and
many enough that a system call carries more than one record (one record of 16 KiB per
call costs a third more)."""
FETCH_BYTES = 128 << 10
"""Most encrypted bytes taken from the kernel at once."""
RECORD_BYTES = (16 << 10) + 256 + 5
"""The longest TLS record."""

Transfer = Callable[[memoryview], int]
"""Sends or receives like a non-blocking socket."""


class TlsRecords:
    """TLS over memory. Use it from one thread at a time."""

    def __init__(
        self,
        context: ssl.SSLContext,
        recv_raw: Transfer,
        send_raw: Transfer,
        *,
        server_name: str | None,
    ) -> None:
        """``server_name`` is what to dial as a client; None on a server."""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming,
            self.outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._recv_raw = recv_raw
        self._send_raw = send_raw
        self._fetched = memoryview(bytearray(RECORD_BYTES))
        self._has_stock = False
        """True if ``incoming`` may hold a whole record."""
        self._is_drained = False
        """True if the kernel had less than was asked for when it was last read."""
        self._unsent = memoryview(b"")
        self._ahead = 0
        """Bytes already encrypted but not yet counted as sent."""

    def recv_into(self, view: memoryview) -> int:
        """Fill ``view`` as far as possible without waiting; return 0 at the end.

        An error is raised when all data before it has been used.
        """
        size, done = len(view), 0
        read: Callable[[int, memoryview], int] = self.tls.read  # type: ignore[assignment]
        while done < size:
            if not self._has_stock:
                if done and self._is_drained:
                    break
                if not self._restock(size - done, done > 0):
                    break
            try:
                done += read(size - done, view[done:])
                self._has_stock = self.incoming.pending > 0 or done == size
            except ssl.SSLWantReadError:
                self._has_stock = False
            except ssl.SSLError as exc:
                if done or isinstance(exc, ssl.SSLZeroReturnError):
                    break
                raise
        return done

    def has_pending(self) -> bool:
        """Return whether decrypted data may be here already; polling would not tell."""
        return self._has_stock and bool(self.incoming.pending or self.tls.pending())

    def take_rest(self) -> bytes:
        """Return what was received after the last record that was read.

        OpenSSL takes no byte beyond that record (SSL_CTX_set_read_ahead, off).
        """
        return self.incoming.read()

    def _restock(self, wanted: int, has_some: bool) -> bool:
        """Return False at the end; delay an error until earlier data has been used."""
        try:
            return self.fetch(wanted) > 0
        except OSError:
            if has_some:
                return False
            raise

    def fetch(self, wanted: int = 0) -> int:
        """Read encrypted bytes from the kernel, about as many as hold ``wanted``."""
        room = min(max(wanted + (wanted >> 9) + 64, RECORD_BYTES), FETCH_BYTES)
        if room > len(self._fetched):
            self._fetched = memoryview(bytearray(room))
        received = self._recv_raw(self._fetched[:room])
        self._is_drained = received < room
        if received:
            self.incoming.write(self._fetched[:received])
            self._has_stock = True
        return received

    def send(self, view: memoryview) -> int:
        """Send what can be sent; return how many bytes have left with their records."""
        size, done = len(view), 0
        while self.flush():
            taken = min(self._ahead, size - done)
            self._ahead -= taken
            done += taken
            if done == size:
                break
            self._ahead = self.tls.write(view[done : done + SEAL_BYTES])
        return done

    @property
    def owes(self) -> bool:
        """True if bytes are on their way that have not been counted as sent."""
        return self._ahead > 0 or len(self._unsent) > 0

    def flush(self) -> bool:
        """Send what is encrypted; return whether all of it has left."""
        while self._unsent or self.outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self.outgoing.read())
            try:
                self._unsent = self._unsent[self._send_raw(self._unsent) :]
            except BlockingIOError:
                return False
        return True
