"""SecureSocket runs TLS 1.3 over a non-blocking socket.

OpenSSL works on memory buffers here and never sees the socket. So one system call can
read many records, a write may stop anywhere, and the handshake proceeds by one step
whenever somebody reads or writes. No application data is handed out or sent before the
peer has proven who it is.

A record that has begun to leave cannot be taken back. When ``send`` takes nothing, the
next call must therefore begin with the same bytes, as is natural for a stream.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ringleader.errors import PeerError, PeerUntrusted
from ringleader.identity.certificates import tls_errors
from ringleader.ids import NodeId
from ringleader.transport.link import POLLIN, POLLOUT
from ringleader.transport.tls_credentials import TlsCredentials

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

ALPN = "ringleader/1"
VERSION = "TLSv1.3"
SEAL_BYTES = 64 << 10
"""Bytes encrypted at once, four records: few enough that little remains unsent, and
many enough that a system call carries more than one record (one record of 16 KiB per
call costs a third more)."""
FETCH_BYTES = 128 << 10
"""Most encrypted bytes taken from the kernel at once."""
MAX_FETCHES = 8
"""Reads in one step of a handshake, so that an endless handshake cannot keep us
busy."""
RECORD_BYTES = (16 << 10) + 256 + 5
"""The longest TLS record."""
NOT_TLS = b"\x15\x03\x03\x00\x02\x02\x46"
"""A fatal alert, which a TLS server sends to a client that speaks something else."""

_raw_send = socket.socket.send
_raw_recv = socket.socket.recv
_raw_recv_into = socket.socket.recv_into


class SecureSocket(socket.socket):
    """A TLS connection that reads and writes like a non-blocking socket.

    It takes over the descriptor of the socket it is made of. Use it from one thread at
    a time, like a link: OpenSSL's state is not safe for two. ``who`` names the peer in
    errors, ``host`` is where it was dialled.
    """

    def __init__(
        self,
        sock: socket.socket,
        credentials: TlsCredentials,
        who: int | str,
        *,
        is_server: bool = False,
        expect: NodeId | None = None,
        host: str = "",
    ) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.setblocking(False)
        self.who = who
        self.node = ""
        """The node on the other side; empty until it is proven."""
        self.has_spoken = False
        """True once we sent anything. A server sends nothing to a client that does
        not know the secret of the cluster, so on a server this proves the secret."""
        self.sent_bytes = self.received_bytes = 0
        """Encrypted bytes so far, those of the handshake included."""
        self._credentials = credentials
        self._expect = expect
        self._is_server = is_server
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (credentials.server if is_server else credentials.client).wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=is_server,
            server_hostname=None if is_server else credentials.server_name(host=host),
        )
        self._fetched = memoryview(bytearray(RECORD_BYTES))
        self._has_stock = False
        """True if ``_incoming`` may hold a whole record."""
        self._is_drained = False
        """True if the kernel had less than was asked for when it was last read."""
        self._unsent = memoryview(b"")
        self._ahead = 0
        """Bytes already encrypted but not yet counted as sent."""

    # -- reading -------------------------------------------------------------------

    def recv_into(
        self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0
    ) -> int:
        """Fill ``buffer`` as far as possible without waiting; return 0 at the end."""
        assert not nbytes
        assert not flags
        self._require_handshake()
        view = memoryview(buffer)
        size, done = len(view), 0
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        while done < size:
            if not self._has_stock:
                if done and self._is_drained:
                    break
                if not self._restock(size - done, done > 0):
                    break
            try:
                done += read(size - done, view[done:])
                self._has_stock = self._incoming.pending > 0 or done == size
            except ssl.SSLWantReadError:
                self._has_stock = False
            except ssl.SSLError as exc:
                if done or isinstance(exc, ssl.SSLZeroReturnError):
                    break
                raise self._explain(exc) from exc
        return done

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Return up to ``bufsize`` bytes. With flags (a peek) they are encrypted
        ones."""
        if flags:
            return _raw_recv(self, bufsize, flags)
        data = bytearray(bufsize)
        received = self.recv_into(data)
        return bytes(memoryview(data)[:received])

    def has_pending(self) -> bool:
        """Return whether decrypted data may be here already; polling would not tell."""
        return self._has_stock and bool(self._incoming.pending or self._tls.pending())

    def _restock(self, wanted: int, has_some: bool) -> bool:
        """Return False at the end; delay an error until earlier data has been used."""
        try:
            return self._fetch(wanted) > 0
        except OSError:
            if has_some:
                return False
            raise

    def _fetch(self, wanted: int) -> int:
        """Read encrypted bytes from the kernel, about as many as hold ``wanted``."""
        room = min(max(wanted + (wanted >> 9) + 64, RECORD_BYTES), FETCH_BYTES)
        if room > len(self._fetched):
            self._fetched = memoryview(bytearray(room))
        received = _raw_recv_into(self, self._fetched[:room])
        self._is_drained = received < room
        if received:
            self.received_bytes += received
            self._incoming.write(self._fetched[:received])
            self._has_stock = True
        return received

    # -- writing -------------------------------------------------------------------

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """Send as many bytes as possible without waiting, and return their number."""
        assert not flags
        self._require_handshake()
        view = memoryview(data)
        size, done = len(view), 0
        while self._flush():
            taken = min(self._ahead, size - done)
            self._ahead -= taken
            done += taken
            if done == size:
                return done
            self._ahead = self._tls.write(view[done : done + SEAL_BYTES])
        if not done and size:
            raise BlockingIOError(errno.EAGAIN, "the connection is full")
        return done

    @property
    def owes(self) -> bool:
        """True if bytes are on their way that have not been counted as sent."""
        return self._ahead > 0 or len(self._unsent) > 0

    def _flush(self) -> bool:
        """Send what is encrypted; return whether all of it has left."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = _raw_send(self, self._unsent)
                self.sent_bytes += sent
                self._unsent = self._unsent[sent:]
                self.has_spoken = True
            except BlockingIOError:
                return False
            except OSError:
                self._raise_reason()
                raise
        return True

    def _raise_reason(self) -> None:
        """Raise the reason if the peer sent one before it hung up."""
        if self.node:
            with contextlib.suppress(OSError):
                self.recv_into(bytearray(1))

    # -- handshake -----------------------------------------------------------------

    def shake(self) -> int:
        """Continue the handshake; return the poll events it waits for, 0 when done."""
        for _ in range(MAX_FETCHES):
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if not self._flush():
                    return POLLOUT
                if not self._fetch_some():
                    return POLLIN
            except ssl.SSLError as exc:
                self._send_alert(exc)
                raise self._explain(exc) from exc
            else:
                self.node = self._prove()
                return 0 if self._flush() else POLLOUT
        return POLLIN

    def _fetch_some(self) -> bool:
        """Read the next bytes of the handshake; return False if none are here."""
        try:
            received = self._fetch(0)
        except BlockingIOError:
            return False
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "hung up in the handshake")
        return True

    def _prove(self) -> str:
        """Verify the certificate after the handshake and return the peer's node id."""
        found = self._tls.version(), self._tls.selected_alpn_protocol()
        if found != (VERSION, ALPN):
            text = f"speaks {found[1] or 'something else'} over {found[0]}, not {ALPN}"
            raise PeerUntrusted(self.who, text)
        der = self._tls.getpeercert(binary_form=True)
        return self._credentials.verify(
            der, expect=self._expect, siblings=True, peer=self.who
        )

    def check_hosts(self, hosts: Sequence[str], who: int) -> None:
        """Raise PeerUntrusted if the peer's certificate is for none of ``hosts``."""
        der = self._tls.getpeercert(binary_form=True)
        self._credentials.check_hosts(der, hosts, who)

    def _require_handshake(self) -> None:
        if not self.node and self.shake():
            raise BlockingIOError(errno.EAGAIN, "the handshake is not complete")

    def refuse(self, data: bytes) -> None:
        """Send ``data`` to a peer that is about to be refused, if possible."""
        with contextlib.suppress(OSError):
            self._tls.write(data)
            self._flush()

    def _send_alert(self, exc: ssl.SSLError) -> None:
        """Send the TLS alert; OpenSSL has none for a peer that does not speak TLS."""
        with contextlib.suppress(OSError):
            self._flush()
            if self._is_server and tls_errors.is_plain(exc):
                _raw_send(self, NOT_TLS)

    def _explain(self, exc: ssl.SSLError) -> PeerError | OSError:
        """Translate an SSL error; on an established stream it means a lost link."""
        name = tls_errors.name_of(exc)
        if self.node and "ALERT" not in name:
            text = f"received data failed its integrity check: {name}"
            return ConnectionResetError(errno.ECONNRESET, text)
        return tls_errors.explain(self.who, exc)
