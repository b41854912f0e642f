"""Listener accepts connections, authenticates them and reads their hello.

It has no thread: whoever waits for a peer calls ``take``, which polls the sockets; of
several threads, one polls for all. With credentials, the TLS handshake comes before the
hello and proceeds step by step.
Connections that have not proven who they are, are bounded in number and time
(``unauthenticated_limits.py``); a stranger is refused here.

A connection for a group that is not being formed yet stays parked, unanswered and
unread, so a peer that is early waits in its socket instead of being refused.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerError, PeerUntrusted, ProtocolError
from ringleader.transport import tcp_socket
from ringleader.transport.fd_exchange import (
    is_same_user,
    open_unix_listener,
    remove_unix_name,
)
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.listening_socket import listen
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.tls_credentials import TlsCredentials
from ringleader.transport.unauthenticated_limits import (
    HANDSHAKE_S,
    PendingConnection,
    connection_to_refuse,
)
from ringleader.wire import hello as wire

MAX_ACCEPTS_PER_POLL = 64
"""Then pending connections are read again: a flood of new ones must not starve them."""
MAX_PARKED = 1024
POLL_S = 0.5
ACCEPT_RETRY_S = 0.01
"""Pause after a failed accept; an immediate retry would fail for the same reason."""
MAX_REJECTIONS = 32
TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of every TLS client."""


@dataclass(slots=True)
class GreetedConnection:
    """A connection whose hello has been read."""

    sock: socket.socket
    hello: wire.Hello
    address: str
    node: str = ""
    """The node that TLS has proven; empty without TLS."""


class Listener:
    """The listening sockets of one rank. Any thread may call ``take``."""

    def __init__(
        self,
        sock: socket.socket,
        credentials: TlsCredentials | None,
        *,
        unix_sock: socket.socket | None,
        unix_name: bytes,
    ) -> None:
        self.sock = sock
        address = sock.getsockname()
        self.port: int = address[1] if isinstance(address, tuple) else 0
        self.credentials = credentials
        """Credentials for TLS, both to accept and to dial; None: plain TCP."""
        self.unix_name = unix_name
        """Name of the Unix socket for ranks of this host; empty if there is none."""
        self.rejected: list[str] = []
        """Why the last connections were refused, for status and tests."""
        self._num_rejected = 0
        self._pending: list[PendingConnection] = []
        self._parked: list[GreetedConnection] = []
        self._unix_sock = unix_sock
        self._changed = threading.Condition()
        """Guards the parked connections; notified when a thread has polled."""
        self._is_polled = False

    @classmethod
    def open(
        cls,
        host: str,
        port: int | range,
        credentials: TlsCredentials | None = None,
        *,
        shares_memory: bool = True,
    ) -> Self:
        """Listen on ``host`` and ``port``, and on a Unix socket to share memory."""
        unix_sock, unix_name = open_unix_listener() if shares_memory else (None, b"")
        try:
            sock = listen(host, port)
            return cls(sock, credentials, unix_sock=unix_sock, unix_name=unix_name)
        except BaseException:
            if unix_sock is not None:
                unix_sock.close()
            remove_unix_name(unix_name)
            raise

    def take(
        self,
        want: Callable[[wire.Hello], bool],
        deadline: Deadline,
        waiting_for: str,
        late: Deadline | None = None,
        on_late: Callable[[], None] = lambda: None,
    ) -> GreetedConnection:
        """Return the first connection that ``want`` accepts; else DeadlineExceeded.

        ``on_late`` is called once if there is none until ``late``.
        """
        rejected_before = self._num_rejected
        while True:
            if late is not None and late.is_over():
                late = None
                on_late()
            with self._changed:
                connection = self._find(want)
                if connection is not None:
                    return connection
                if deadline.is_over():
                    text = f"did not connect to us within {deadline.after_s:.1f} s"
                    if self._num_rejected > rejected_before:
                        text += f"; refused meanwhile: {self.rejected[-1]}"
                    raise DeadlineExceeded(waiting_for, text)
                if self._is_polled:  # by another thread, for all of them
                    self._changed.wait(min(deadline.wait_s(), POLL_S))
                    continue
                self._is_polled = True
            try:
                self._poll(deadline)
            finally:
                with self._changed:
                    self._is_polled = False
                    self._changed.notify_all()

    def num_parked(self) -> int:
        """Return how many connections wait for a group that is not being formed."""
        return len(self._parked)

    def _find(self, want: Callable[[wire.Hello], bool]) -> GreetedConnection | None:
        """Remove and return the first parked connection that fits and is still open."""
        for connection in [v for v in self._parked if want(v.hello)]:
            self._parked.remove(connection)
            if not tcp_socket.has_hung_up(connection.sock):
                return connection
            connection.sock.close()
            self._note_rejection(f"{connection.address}: hung up while it waited")
        return None

    def _poll(self, deadline: Deadline) -> None:
        """Wait for events, read pending hellos, accept; refuse what is too slow."""
        wanted = [(s.fileno(), POLLIN) for s in self._listening()]
        for pending in self._pending:
            events = POLLIN
            if isinstance(pending.sock, SecureSocket) and pending.sock.owes:
                events |= POLLOUT
            wanted.append((pending.sock.fileno(), events))
        wait_ready(wanted, min(deadline.wait_s(), POLL_S))
        for pending in list(self._pending):
            self._read(pending)
        for listening in self._listening():
            self._accept(listening)

    def _listening(self) -> list[socket.socket]:
        return [self.sock] + ([self._unix_sock] if self._unix_sock else [])

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(MAX_ACCEPTS_PER_POLL):
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as exc:  # no descriptor left, or the peer is gone already
                self._note_rejection(f"a connection was not accepted: {exc.strerror}")
                time.sleep(ACCEPT_RETRY_S)
                return
            host, name = "", "this host"
            if isinstance(address, tuple):
                host, name = address[0], f"{address[0]}:{address[1]}"
            try:
                self._begin_handshake(sock, host, name)
            except (OSError, PeerError) as exc:
                sock.close()
                self._note_rejection(f"{name}: {exc}")

    def _begin_handshake(self, sock: socket.socket, host: str, name: str) -> None:
        """Add a pending connection and read at once: its hello may be here already."""
        if not host and not is_same_user(sock):
            raise PeerUntrusted(
                "the Unix socket", "another user of this host connected"
            )
        tcp_socket.tune(sock)
        if host and self.credentials is not None:
            sock = SecureSocket(sock, self.credentials, name, is_server=True)
        pending = PendingConnection(sock, host, name, Deadline.after(HANDSHAKE_S))
        self._pending.append(pending)
        self._read(pending)
        if pending in self._pending:
            refused = connection_to_refuse(self._pending, pending)
            if refused is not None:
                text = "refused to make room for others before it said hello"
                self._refuse(refused, f"{refused.address}: {text}")

    def _read(self, pending: PendingConnection) -> None:
        """Read what has arrived of a hello; park the connection once it is complete."""
        try:
            hello = self._read_hello(pending)
        except BlockingIOError:
            if pending.until.is_over():
                self._refuse(pending, f"{pending.address}: never said hello")
            return
        except OSError as exc:
            why = exc.strerror or exc
            self._refuse(pending, f"{pending.address}: during the handshake: {why}")
            return
        except PeerError as exc:
            if isinstance(exc, PeerUntrusted):
                self._send_status(pending.sock, wire.Status.WRONG_NAMESPACE)
            self._refuse(pending, str(exc))
            return
        if hello is not None:
            self._pending.remove(pending)
            node = ""
            if isinstance(pending.sock, SecureSocket):
                node = pending.sock.node
            self._park(GreetedConnection(pending.sock, hello, pending.address, node))

    def _read_hello(self, pending: PendingConnection) -> wire.Hello | None:
        """Return the hello once it is complete; ProtocolError if it is not one."""
        data = pending.sock.recv(wire.HELLO_BYTES - len(pending.data))
        if not data:
            raise ProtocolError(pending.address, "hung up before saying hello")
        pending.data += data
        if wire.speaks_other_version(pending.data):
            self._send_status(pending.sock, wire.Status.BAD_VERSION)
            raise ProtocolError(pending.address, "speaks another version")
        if self.credentials is None and pending.data.startswith(TLS_HANDSHAKE):
            # Any bytes that are not TLS tell the client that we do not speak it.
            self._send_status(pending.sock, wire.Status.BAD_VERSION)
            raise ProtocolError(pending.address, "speaks TLS, and we do not")
        if len(pending.data) < wire.HELLO_BYTES:
            return None
        hello = wire.decode_hello(bytes(pending.data), pending.address)
        if pending.is_local != (hello.purpose is wire.Purpose.SHM):
            text = f"hello: {hello.purpose.name} is not accepted on this socket"
            raise ProtocolError(pending.address, text)
        return hello

    def _send_status(self, sock: socket.socket, status: wire.Status) -> None:
        """Tell a peer why it is refused; it may not be listening any more."""
        answer = wire.HelloReply(
            status=status, rank=0, incarnation=bytes(16), host=bytes(16)
        )
        data = wire.encode_reply(answer)
        with contextlib.suppress(OSError):
            if isinstance(sock, SecureSocket):
                sock.refuse(data)
            else:
                sock.send(data)

    def _park(self, connection: GreetedConnection) -> None:
        with self._changed:
            self._drop_closed()
            if len(self._parked) < MAX_PARKED:
                self._parked.append(connection)
                return
        self._note_rejection(f"{connection.address}: too many connections wait")
        connection.sock.close()

    def _drop_closed(self) -> None:
        for connection in [v for v in self._parked if tcp_socket.has_hung_up(v.sock)]:
            self._parked.remove(connection)
            connection.sock.close()

    def _refuse(self, pending: PendingConnection, why: str) -> None:
        self._pending.remove(pending)
        tcp_socket.close_gently(pending.sock)
        self._note_rejection(why)

    def _note_rejection(self, why: str) -> None:
        self.rejected = [*self.rejected[1 - MAX_REJECTIONS :], why]
        self._num_rejected += 1

    def close(self) -> None:
        """Stop listening and close all connections that nobody has taken."""
        self.hang_up()
        remove_unix_name(self.unix_name)

    def hang_up(self) -> None:
        """Close the sockets, as a forked child must: the Unix name is its parent's."""
        waiting = [p.sock for p in self._pending] + [p.sock for p in self._parked]
        for sock in self._listening() + waiting:
            sock.close()
        self._pending.clear()
        self._parked.clear()
