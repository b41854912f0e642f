"""TLS 1.3 on a socket that never blocks, and in words why it did not come about.

OpenSSL works on memory here and never sees the socket: so a read takes many records
with one system call, a write may stop anywhere, and the handshake goes on a step at a
time whenever somebody reads or writes. Nothing is handed out, and nothing of ours is
sent, before the peer has proven who it is.

A record that has begun to leave cannot be taken back. So when a send takes nothing,
whoever sends next must begin with the same bytes, as everybody does who sends a stream.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ringleader.errors import PeerError, PeerUntrusted
from ringleader.identity.certificates import tls_errors
from ringleader.ids import NodeId
from ringleader.transport.link import POLLIN, POLLOUT

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

ALPN = "ringleader/1"
VERSION = "TLSv1.3"
SEAL_BYTES = 64 << 10
"""Encrypted at once, four records: few enough that what does not leave is little, many
enough that a system call carries more than one (16 KiB each cost a third more)."""
FETCH_BYTES = 128 << 10
"""At most this much is taken from the kernel at once, and lies here encrypted."""
MAX_FETCHES = 8
"""In one step of a handshake, so that nobody keeps us busy with an endless one."""
RECORD_BYTES = (16 << 10) + 256 + 5
"""The longest record there can be."""
NOT_TLS = b"\x15\x03\x03\x00\x02\x02\x46"
"""A fatal alert, what a TLS server says to who speaks something else."""

_raw_send = socket.socket.send
_raw_recv = socket.socket.recv
_raw_recv_into = socket.socket.recv_into


class TlsCredentials(Protocol):
    """What a process shows to others, and how it judges what they show.

    ``ringleader.identity.credentials.Credentials`` is one.
    """

    @property
    def node(self) -> NodeId:
        """Who we are."""
        ...

    @property
    def namespace(self) -> bytes:
        """What tells clusters apart in a hello, 16 bytes."""
        ...

    @property
    def server(self) -> ssl.SSLContext:
        """For links that we accept."""
        ...

    @property
    def client(self) -> ssl.SSLContext:
        """For links that we dial; ``server_name`` gives their server_hostname."""
        ...

    def server_name(self, label: str = "") -> str:
        """The server name to dial with, new for every call."""
        ...

    def verify(
        self,
        der: bytes | None,
        *,
        expect: NodeId | None = None,
        siblings: bool = False,
        peer: int | str = "the peer",
    ) -> NodeId:
        """The node behind a certificate; PeerUntrusted says why it is none.

        ``siblings``: other processes of our own node are welcome.
        """
        ...


class SecureSocket(socket.socket):
    """A TLS connection that reads and writes like a socket that does not block.

    It owns the descriptor of the socket it is made of. One thread at a time, like a
    link: OpenSSL's state is not made for two. ``who`` is blamed in errors.
    """

    def __init__(
        self,
        sock: socket.socket,
        credentials: TlsCredentials,
        who: int | str,
        *,
        is_server: bool = False,
        expect: NodeId | None = None,
    ) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.setblocking(False)
        self.who = who
        self.node = ""
        """Who is on the other side; empty until that is proven."""
        self.has_spoken = False
        """A server says nothing to who does not know the secret of the cluster."""
        self._credentials = credentials
        self._expect = expect
        self._is_server = is_server
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (credentials.server if is_server else credentials.client).wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=is_server,
            server_hostname=None if is_server else credentials.server_name(),
        )
        self._fetched = memoryview(bytearray(RECORD_BYTES))
        self._has_stock = False
        """Whether ``_incoming`` may hold a whole record."""
        self._unsent = memoryview(b"")
        self._ahead = 0
        """Bytes that are encrypted already, but have not been counted as sent."""

    # -- reading -------------------------------------------------------------------

    def recv_into(
        self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0
    ) -> int:
        """Fill ``buffer`` as far as that goes without waiting; 0: the end."""
        assert not nbytes
        assert not flags
        self._require_peer()
        view = memoryview(buffer)
        size, done = len(view), 0
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        while done < size:
            if not self._has_stock and not self._restock(size - done, done > 0):
                break
            try:
                done += read(size - done, view[done:])
            except ssl.SSLWantReadError:
                self._has_stock = False
            except ssl.SSLError as exc:
                if done or isinstance(exc, ssl.SSLZeroReturnError):
                    break
                raise self._explain(exc) from exc
        return done

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Up to ``bufsize`` bytes. A peek shows encrypted ones: something is there."""
        if flags:
            return _raw_recv(self, bufsize, flags)
        data = bytearray(bufsize)
        received = self.recv_into(data)
        return bytes(memoryview(data)[:received])

    def has_pending(self) -> bool:
        """Whether something to read may be here already: polling would not tell."""
        return self._has_stock and bool(self._incoming.pending or self._tls.pending())

    def _restock(self, wanted: int, has_some: bool) -> bool:
        """False at the end; an error can wait until what came before has been used."""
        try:
            return self._fetch(wanted) > 0
        except OSError:
            if has_some:
                return False
            raise

    def _fetch(self, wanted: int) -> int:
        """Take encrypted bytes from the kernel, about as many as hold ``wanted``."""
        room = min(max(wanted + (wanted >> 9) + 64, RECORD_BYTES), FETCH_BYTES)
        if room > len(self._fetched):
            self._fetched = memoryview(bytearray(room))
        received = _raw_recv_into(self, self._fetched[:room])
        if received:
            self._incoming.write(self._fetched[:received])
            self._has_stock = True
        return received

    # -- writing -------------------------------------------------------------------

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """Bytes that have left, as many as go without waiting."""
        assert not flags
        self._require_peer()
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
        """Whether something is on its way that has not been counted as sent."""
        return self._ahead > 0 or len(self._unsent) > 0

    def _flush(self) -> bool:
        """Whether everything that is encrypted has left."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            try:
                self._unsent = self._unsent[_raw_send(self, self._unsent) :]
                self.has_spoken = True
            except BlockingIOError:
                return False
            except OSError:
                self._hear_why()
                raise
        return True

    def _hear_why(self) -> None:
        """Who hangs up on us may have said why; raises that."""
        if self.node:
            with contextlib.suppress(OSError):
                self.recv_into(bytearray(1))

    # -- who is there --------------------------------------------------------------

    def shake(self) -> int:
        """Go on with the handshake: what it waits for, in poll events; 0: all done."""
        for _ in range(MAX_FETCHES):
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if not self._flush():
                    return POLLOUT
                if not self._fetch_some():
                    return POLLIN
            except ssl.SSLError as exc:
                self._say_no(exc)
                raise self._explain(exc) from exc
            else:
                self.node = self._prove()
                return 0 if self._flush() else POLLOUT
        return POLLIN

    def _fetch_some(self) -> bool:
        """Take what has come of the handshake; False: nothing yet."""
        try:
            received = self._fetch(0)
        except BlockingIOError:
            return False
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "hung up in the handshake")
        return True

    def _prove(self) -> str:
        """The node on the other side of a finished handshake."""
        found = self._tls.version(), self._tls.selected_alpn_protocol()
        if found != (VERSION, ALPN):
            text = f"speaks {found[1] or 'something else'} over {found[0]}, not {ALPN}"
            raise PeerUntrusted(self.who, text)
        der = self._tls.getpeercert(binary_form=True)
        return self._credentials.verify(
            der, expect=self._expect, siblings=True, peer=self.who
        )

    def _require_peer(self) -> None:
        if not self.node and self.shake():
            raise BlockingIOError(errno.EAGAIN, "the handshake goes on")

    def refuse(self, data: bytes) -> None:
        """Say ``data`` to a peer that has not proven enough, if it can be told."""
        with contextlib.suppress(OSError):
            self._tls.write(data)
            self._flush()

    def _say_no(self, exc: ssl.SSLError) -> None:
        """Let the other side know; OpenSSL says nothing to who does not speak TLS."""
        with contextlib.suppress(OSError):
            self._flush()
            if self._is_server and tls_errors.is_plain(exc):
                _raw_send(self, NOT_TLS)

    def _explain(self, exc: ssl.SSLError) -> PeerError | OSError:
        """The error in our words; what happens to a living stream is a lost one."""
        name = tls_errors.name_of(exc)
        if self.node and "ALERT" not in name:
            text = f"what arrived was damaged on the way: {name}"
            return ConnectionResetError(errno.ECONNRESET, text)
        return tls_errors.explain(self.who, exc)
