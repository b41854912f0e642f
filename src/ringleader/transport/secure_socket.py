"""SecureSocket encrypts a non-blocking socket: TLS 1.3, then records of our own.

The handshake proceeds by one step whenever somebody reads or writes. No application
data is handed out or sent before the peer has proven who it is.

If both ends can, each then sends a secret of 32 bytes over TLS, and all that follows in
sealed records (``wire/sealed_record.py``), large and cheap ones. That is agreed
by ALPN, in the handshake that both ends prove, so nobody else can change it. Otherwise
the stream goes on in TLS records (``tls_records.py``).

A record that has begun to leave cannot be taken back. When ``send`` takes nothing, the
next call must therefore begin with the same bytes, as is natural for a stream.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ringleader.errors import PeerError, PeerUntrusted
from ringleader.identity.certificates import tls_errors
from ringleader.identity.secret_value import Secret
from ringleader.ids import NodeId
from ringleader.transport.link import POLLIN, POLLOUT
from ringleader.transport.sealed_reader import SealedReader
from ringleader.transport.sealed_writer import SealedWriter
from ringleader.transport.tls_credentials import TlsCredentials
from ringleader.transport.tls_records import TlsRecords
from ringleader.wire.sealed_record import ALPN, SEALED_ALPN, SECRET_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

VERSION = "TLSv1.3"
MAX_FETCHES = 8
"""Reads in one step of a handshake, so that an endless handshake cannot keep us
busy."""
NOT_TLS = b"\x15\x03\x03\x00\x02\x02\x46"
"""A fatal alert, which a TLS server sends to a client that speaks something else."""

_raw_send = socket.socket.send
_raw_recv = socket.socket.recv
_raw_recv_into = socket.socket.recv_into


class SecureSocket(socket.socket):
    """An encrypted connection that reads and writes like a non-blocking socket.

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
        self.writer: SealedWriter | None = None
        """What sends if records are sealed; None before the handshake is over."""
        self._reader: SealedReader | None = None
        """None until the secret of the peer is here."""
        self._is_sealed = False
        """True if both ends use sealed records after the handshake."""
        self._secret = bytearray()
        """What has arrived of the secret of the peer."""
        self._records = TlsRecords(
            credentials.server if is_server else credentials.client,
            self._recv_raw,
            self._send_raw,
            server_name=None if is_server else credentials.server_name(host=host),
        )

    # -- reading -------------------------------------------------------------------

    def recv_into(
        self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0
    ) -> int:
        """Fill ``buffer`` as far as possible without waiting; return 0 at the end."""
        assert not nbytes
        assert not flags
        self._require_handshake()
        view = memoryview(buffer)
        if not self._is_sealed:
            return self._recv_tls(view)
        if self._reader is None:
            self._reader = self._receive_secret()
        return 0 if self._reader is None else self._reader.recv_into(view)

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
        return (self._reader or self._records).has_pending()

    def _recv_tls(self, view: memoryview) -> int:
        try:
            return self._records.recv_into(view)
        except ssl.SSLError as exc:
            raise self._explain(exc) from exc

    def _recv_raw(self, view: memoryview) -> int:
        received = _raw_recv_into(self, view)
        self.received_bytes += received
        return received

    # -- writing -------------------------------------------------------------------

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """Send as many bytes as possible without waiting, and return their number."""
        assert not flags
        return self._send(memoryview(data), behind=False)

    def send_behind(self, view: memoryview) -> int:
        """``send`` in a thread, if there is one: see ``SealedWriter.send``."""
        return self._send(view, behind=True)

    def _send(self, view: memoryview, *, behind: bool) -> int:
        self._require_handshake()
        done = 0
        try:
            if self.writer is None:
                done = self._records.send(view)
            elif self._records.flush():
                done = self.writer.send(view, behind=behind)
        except OSError:
            self._raise_reason()
            raise
        if not done and len(view):
            raise BlockingIOError(errno.EAGAIN, "the connection is full")
        return done

    @property
    def owes(self) -> bool:
        """True if bytes are on their way that have not been counted as sent."""
        return self._records.owes or (self.writer is not None and self.writer.owes)

    def _send_raw(self, view: memoryview) -> int:
        sent = _raw_send(self, view)
        self.sent_bytes += sent
        self.has_spoken = True
        return sent

    def _flush(self) -> bool:
        try:
            return self._records.flush()
        except OSError:
            self._raise_reason()
            raise

    def _raise_reason(self) -> None:
        """Raise the reason if the peer sent one before it hung up."""
        if self.node:
            with contextlib.suppress(OSError):
                self.recv_into(bytearray(1))

    def close(self) -> None:
        """Close the socket, after the thread that sends has ended."""
        if self.writer is not None:
            self.writer.close()
        super().close()

    # -- handshake -----------------------------------------------------------------

    def shake(self) -> int:
        """Continue the handshake; return the poll events it waits for, 0 when done."""
        for _ in range(MAX_FETCHES):
            try:
                self._records.tls.do_handshake()
            except ssl.SSLWantReadError:
                if not self._records.flush():
                    return POLLOUT
                if not self._fetch_some():
                    return POLLIN
            except ssl.SSLError as exc:
                self._send_alert(exc)
                raise self._explain(exc) from exc
            else:
                self.node = self._prove()
                self._send_secret()
                return 0 if self._flush() else POLLOUT
        return POLLIN

    def _fetch_some(self) -> bool:
        """Read the next bytes of the handshake; return False if none are here."""
        try:
            received = self._records.fetch()
        except BlockingIOError:
            return False
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "hung up in the handshake")
        return True

    def _prove(self) -> str:
        """Verify the certificate after the handshake and return the peer's node id."""
        tls = self._records.tls
        found = tls.version(), tls.selected_alpn_protocol()
        if found not in ((VERSION, ALPN), (VERSION, SEALED_ALPN)):
            text = f"speaks {found[1] or 'something else'} over {found[0]}, not {ALPN}"
            raise PeerUntrusted(self.who, text)
        der = tls.getpeercert(binary_form=True)
        return self._credentials.verify(
            der, expect=self._expect, siblings=True, peer=self.who
        )

    def _send_secret(self) -> None:
        """Send our secret if sealed records were agreed; what follows it is sealed."""
        tls = self._records.tls
        self._is_sealed = tls.selected_alpn_protocol() == SEALED_ALPN
        if self._is_sealed and self.writer is None:
            # Imported here, so that plain groups do not need cryptography.
            from ringleader.identity import record_cipher

            secret = record_cipher.new_secret()
            tls.write(secret.reveal())
            cipher = record_cipher.RecordCipher(
                secret, sender=self._credentials.node, is_dialer=not self._is_server
            )
            room = partial(self.getsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF)
            self.writer = SealedWriter(cipher, self._send_raw, room)

    def _receive_secret(self) -> SealedReader | None:
        """Read the secret of the peer; return None at the end of the stream."""
        from ringleader.identity.record_cipher import RecordCipher

        part = memoryview(bytearray(SECRET_BYTES - len(self._secret)))
        received = self._recv_tls(part)
        if not received:
            return None
        self._secret += part[:received]
        if len(self._secret) < SECRET_BYTES:
            raise BlockingIOError(errno.EAGAIN, "the secret is not complete")
        if self._records.tls.pending():
            text = "received TLS data where sealed records were agreed"
            raise ConnectionResetError(errno.ECONNRESET, text)
        secret = Secret(bytes(self._secret))
        self._secret.clear()
        sender = NodeId(self.node)
        cipher = RecordCipher(secret, sender=sender, is_dialer=self._is_server)
        return SealedReader(cipher, self._recv_raw, self._records.take_rest())

    def check_hosts(self, hosts: Sequence[str], who: int) -> None:
        """Raise PeerUntrusted if the peer's certificate is for none of ``hosts``."""
        der = self._records.tls.getpeercert(binary_form=True)
        self._credentials.check_hosts(der, hosts, who)

    def _require_handshake(self) -> None:
        if not self.node and self.shake():
            raise BlockingIOError(errno.EAGAIN, "the handshake is not complete")

    def refuse(self, data: bytes) -> None:
        """Send ``data`` to a peer that is about to be refused, if possible."""
        with contextlib.suppress(OSError):
            self._send_secret()
            stream = self.writer or self._records
            if self._records.flush():
                stream.send(memoryview(data))

    def _send_alert(self, exc: ssl.SSLError) -> None:
        """Send the TLS alert; OpenSSL has none for a peer that does not speak TLS."""
        with contextlib.suppress(OSError):
            self._records.flush()
            if self._is_server and tls_errors.is_plain(exc):
                _raw_send(self, NOT_TLS)

    def _explain(self, exc: ssl.SSLError) -> PeerError | OSError:
        """Translate an SSL error; on an established stream it means a lost link."""
        name = tls_errors.name_of(exc)
        if self.node and "ALERT" not in name:
            text = f"received data failed its integrity check: {name}"
            return ConnectionResetError(errno.ECONNRESET, text)
        return tls_errors.explain(self.who, exc)
