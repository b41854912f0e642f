"""Who comes to our door: accept, prove, hear the hello, keep visitors until asked for.

There is no thread: whoever waits for a peer pumps the listener. A connection for a
group that is not being formed yet stays parked, unanswered and unread, so a peer that
is early waits in its socket instead of being refused. With
credentials, TLS comes before the hello, a step at a time. Strangers are bounded in
number and time, each address for itself, so that one that opens many connections stands
in its own way only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerError, PeerUntrusted, ProtocolError
from ringleader.transport import tcp
from ringleader.transport.fd_exchange import (
    is_same_user,
    open_unix_listener,
    unix_socket_path,
)
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.secure_socket import SecureSocket, TlsCredentials
from ringleader.wire import hello as wire

GREETING_S = 5.0
"""For TLS and hello together; who is not done by then is shown out."""
MAX_PENDING = 64
MAX_PER_ADDRESS = 8
MIN_PENDING_S = 0.25
"""Whoever came less than this ago is not sent away for the next of its address: many
ranks of one host come at once, and all of them get in if they are taken in turn."""
MAX_ACCEPTS_PER_POLL = 64
"""Then those who are in are heard again: a flood must not keep us at the door."""
MAX_PARKED = 1024
ACCEPT_RETRY_S = 0.01
"""Where nobody can be let in: the next look would find the same at once."""
MAX_REJECTIONS = 32
TLS_HANDSHAKE = b"\x16\x03"
"""How every TLS client begins."""


@dataclass(slots=True)
class GreetedConnection:
    """A connection whose hello we have read."""

    sock: socket.socket
    hello: wire.Hello
    address: str
    node: str = ""
    """Who it is, where TLS has proven that."""


@dataclass(slots=True, eq=False)
class PendingConnection:
    sock: socket.socket
    host: str
    address: str
    until: Deadline
    data: bytearray = field(default_factory=bytearray)

    @property
    def is_local(self) -> bool:
        """Whether it came through the Unix door."""
        return not self.host

    @property
    def has_proven_secret(self) -> bool:
        """Whether it has shown that it knows the secret of our cluster."""
        return isinstance(self.sock, SecureSocket) and self.sock.has_spoken

    def had_its_time(self) -> bool:
        return self.until.left_s() < GREETING_S - MIN_PENDING_S


class Listener:
    """The listening sockets of one rank. One thread at a time."""

    def __init__(
        self,
        sock: socket.socket,
        credentials: TlsCredentials | None = None,
        *,
        shares_memory: bool = True,
    ) -> None:
        self.sock = sock
        self.port: int = sock.getsockname()[1]
        self.credentials = credentials
        """What TLS needs, for those who come and those we dial; None: plain TCP."""
        self.rejected: list[str] = []
        """Why the last strangers were turned away, for status and tests."""
        self._pending: list[PendingConnection] = []
        self._parked: list[GreetedConnection] = []
        self.unix_name = b""
        self._unix_sock: socket.socket | None = None
        if shares_memory:
            self._unix_sock, self.unix_name = open_unix_listener()

    def take(
        self, want: Callable[[wire.Hello], bool], deadline: Deadline, waiting_for: str
    ) -> GreetedConnection:
        """The first connection ``want`` accepts; DeadlineExceeded when none comes."""
        while True:
            connection = self._find(want)
            if connection is not None:
                return connection
            if deadline.is_over():
                text = f"did not connect to us within {deadline.after_s:.1f} s"
                if self.rejected:
                    text += f"; turned away meanwhile: {self.rejected[-1]}"
                raise DeadlineExceeded(waiting_for, text)
            self._pump(deadline)

    def num_parked(self) -> int:
        """How many wait for groups that nobody here is forming."""
        return len(self._parked)

    def _find(self, want: Callable[[wire.Hello], bool]) -> GreetedConnection | None:
        """The first parked connection that ``want`` accepts and that is still open."""
        for connection in [v for v in self._parked if want(v.hello)]:
            self._parked.remove(connection)
            if not tcp.has_hung_up(connection.sock):
                return connection
            connection.sock.close()
            self._reject(f"{connection.address}: hung up before we had time for it")
        return None

    def _pump(self, deadline: Deadline) -> None:
        """Wait for news, accept, read hellos, show out the silent."""
        wanted = [(s.fileno(), POLLIN) for s in self._listening()]
        for pending in self._pending:
            events = POLLIN
            if isinstance(pending.sock, SecureSocket) and pending.sock.owes:
                events |= POLLOUT
            wanted.append((pending.sock.fileno(), events))
        wait_ready(wanted, min(deadline.left_s(), 0.5))
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
            except OSError as exc:  # no descriptor left, or gone before we came
                self._reject(f"somebody could not be let in: {exc.strerror}")
                time.sleep(ACCEPT_RETRY_S)
                return
            host, name = "", "this host"
            if isinstance(address, tuple):
                host, name = address[0], f"{address[0]}:{address[1]}"
            try:
                self._begin_handshake(sock, host, name)
            except (OSError, PeerError) as exc:
                sock.close()
                self._reject(f"{name}: {exc}")

    def _begin_handshake(self, sock: socket.socket, host: str, name: str) -> None:
        """Let somebody say hello, and listen at once: it may have done so already."""
        if not host and not is_same_user(sock):
            raise PeerUntrusted("the Unix door", "another user of this host came")
        tcp.tune(sock)
        if host and self.credentials is not None:
            sock = SecureSocket(sock, self.credentials, name, is_server=True)
        pending = PendingConnection(sock, host, name, Deadline.after(GREETING_S))
        self._pending.append(pending)
        self._read(pending)
        if pending in self._pending:
            self._make_room(pending)

    def _make_room(self, newcomer: PendingConnection) -> None:
        """One too many: the oldest of the busiest address goes.

        Those who know the secret stay before those who have not shown it.
        """
        counts = Counter(pending.host for pending in self._pending)
        busiest = newcomer.host
        if counts[busiest] <= MAX_PER_ADDRESS:
            if len(self._pending) <= MAX_PENDING:
                return
            busiest = counts.most_common(1)[0][0]
        crowd = [each for each in self._pending if each.host == busiest]
        goes = min(crowd, key=lambda each: each.has_proven_secret)
        is_better = newcomer.has_proven_secret and not goes.has_proven_secret
        if newcomer in crowd and not is_better and not goes.had_its_time():
            goes = newcomer
        self._refuse(goes, f"{goes.address}: gave way to others, silent so far")

    def _read(self, pending: PendingConnection) -> None:
        """Read what is there of a hello; park its sender once it is complete."""
        try:
            hello = self._read_hello(pending)
        except BlockingIOError:
            if pending.until.is_over():
                self._refuse(pending, f"{pending.address}: never said hello")
            return
        except OSError as exc:
            why = exc.strerror or exc
            self._refuse(pending, f"{pending.address}: while greeting: {why}")
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
        """The hello once it is complete; raises when it is none."""
        data = pending.sock.recv(wire.HELLO_BYTES - len(pending.data))
        if not data:
            raise ProtocolError(pending.address, "hung up before saying hello")
        pending.data += data
        if wire.speaks_other_version(pending.data):
            self._send_status(pending.sock, wire.Status.BAD_VERSION)
            raise ProtocolError(pending.address, "speaks another version")
        if self.credentials is None and pending.data.startswith(TLS_HANDSHAKE):
            # Any word that is not TLS tells it so.
            self._send_status(pending.sock, wire.Status.BAD_VERSION)
            raise ProtocolError(pending.address, "speaks TLS, and we do not")
        if len(pending.data) < wire.HELLO_BYTES:
            return None
        hello = wire.decode_hello(bytes(pending.data), pending.address)
        if pending.is_local != (hello.purpose is wire.Purpose.SHM):
            text = f"hello: {hello.purpose.name} does not come this way"
            raise ProtocolError(pending.address, text)
        return hello

    def _send_status(self, sock: socket.socket, status: wire.Status) -> None:
        """So that the other side learns why it is shown out."""
        answer = wire.Answer(
            status=status, rank=0, incarnation=bytes(16), host=bytes(16)
        )
        data = wire.encode_answer(answer)
        with contextlib.suppress(OSError):
            if isinstance(sock, SecureSocket):
                sock.refuse(data)
            else:
                sock.send(data)

    def _park(self, connection: GreetedConnection) -> None:
        if len(self._parked) >= MAX_PARKED:
            self._drop_closed()
        if len(self._parked) >= MAX_PARKED:
            self._reject(f"{connection.address}: too many connections wait")
            connection.sock.close()
        else:
            self._parked.append(connection)

    def _drop_closed(self) -> None:
        for connection in [v for v in self._parked if tcp.has_hung_up(v.sock)]:
            self._parked.remove(connection)
            connection.sock.close()

    def _refuse(self, pending: PendingConnection, why: str) -> None:
        self._pending.remove(pending)
        tcp.close_gently(pending.sock)
        self._reject(why)

    def _reject(self, why: str) -> None:
        self.rejected = [*self.rejected[1 - MAX_REJECTIONS :], why]

    def close(self) -> None:
        """Stop listening; everybody who waits is shown out."""
        for sock in self._listening():
            sock.close()
        for pending in self._pending:
            pending.sock.close()
        for connection in self._parked:
            connection.sock.close()
        self._pending.clear()
        self._parked.clear()
        if self.unix_name and not self.unix_name.startswith(b"@"):
            with contextlib.suppress(OSError):
                os.unlink(unix_socket_path(self.unix_name))
