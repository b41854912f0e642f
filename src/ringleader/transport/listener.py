"""Who comes to our door: accept, hear the hello, keep visitors until asked for.

There is no thread: whoever waits for a peer pumps the listener. A connection for a
group that is not being formed yet stays parked, unanswered and unread, so a peer that
is early waits in its socket instead of being refused. Strangers are bounded in number
and time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, PeerError, ProtocolError
from ringleader.transport import tcp
from ringleader.transport.link import POLLIN, wait_ready
from ringleader.wire import hello as wire

GREETING_S = 5.0
"""A stranger who says nothing for this long is shown out."""
MAX_STRANGERS = 256
MAX_PARKED = 1024

Authenticate = Callable[[socket.socket, Deadline], socket.socket]
"""Proves who is on the other side before a word is exchanged; TLS slots in here."""


def no_authentication(sock: socket.socket, _deadline: Deadline) -> socket.socket:
    """Plain sockets, for trusted wires."""
    return sock


@dataclass(slots=True)
class Visitor:
    """A connection whose hello we have read."""

    sock: socket.socket
    hello: wire.Hello
    address: str


@dataclass(slots=True)
class _Stranger:
    sock: socket.socket
    address: str
    until: Deadline
    data: bytearray = field(default_factory=bytearray)


class Listener:
    """The listening sockets of one rank. One thread at a time."""

    def __init__(
        self,
        sock: socket.socket,
        authenticate: Authenticate = no_authentication,
        *,
        with_door: bool = True,
    ) -> None:
        self.sock = sock
        self.port: int = sock.getsockname()[1]
        self.rejected: list[str] = []
        """Why the last strangers were turned away, for status and tests."""
        self._authenticate = authenticate
        self._strangers: list[_Stranger] = []
        self._parked: list[Visitor] = []
        self.door = b""
        self._door_sock: socket.socket | None = None
        if with_door:
            self._door_sock, self.door = _open_door()

    def take(
        self, want: Callable[[wire.Hello], bool], deadline: Deadline, waiting_for: str
    ) -> Visitor:
        """The first visitor ``want`` accepts; DeadlineExceeded when none comes."""
        while True:
            visitor = self._find(want)
            if visitor is not None:
                return visitor
            if deadline.is_over():
                text = f"did not connect to us within {deadline.after_s:.1f} s"
                if self.rejected:
                    text += f"; turned away meanwhile: {self.rejected[-1]}"
                raise DeadlineExceeded(waiting_for, text)
            self._pump(deadline)

    def num_parked(self) -> int:
        """How many wait for groups that nobody here is forming."""
        return len(self._parked)

    def _find(self, want: Callable[[wire.Hello], bool]) -> Visitor | None:
        """The first parked visitor ``want`` accepts who has not given up meanwhile."""
        for visitor in [v for v in self._parked if want(v.hello)]:
            self._parked.remove(visitor)
            if not tcp.has_hung_up(visitor.sock):
                return visitor
            visitor.sock.close()
            self._reject(f"{visitor.address}: hung up before we had time for it")
        return None

    def _pump(self, deadline: Deadline) -> None:
        """Wait for news, accept, read hellos, show out the silent."""
        wanted = [(s.sock.fileno(), POLLIN) for s in self._strangers]
        if len(self._strangers) < MAX_STRANGERS:  # else they wait in the backlog
            wanted += [(s.fileno(), POLLIN) for s in self._listening()]
        wait_ready(wanted, min(deadline.left_s(), 0.5))
        for listening in self._listening():
            self._accept(listening)
        for stranger in list(self._strangers):
            self._hear(stranger)

    def _listening(self) -> list[socket.socket]:
        return [self.sock] + ([self._door_sock] if self._door_sock else [])

    def _accept(self, listening: socket.socket) -> None:
        while len(self._strangers) < MAX_STRANGERS:
            try:
                sock, address = listening.accept()
            except OSError:
                return
            name = "this host"
            if isinstance(address, tuple):
                name = f"{address[0]}:{address[1]}"
            until = Deadline.after(GREETING_S)
            try:
                tcp.tune(sock)
                sock = self._authenticate(sock, until)
            except (OSError, PeerError) as exc:
                sock.close()
                self._reject(f"{name}: {exc}")
            else:
                self._strangers.append(_Stranger(sock, name, until))

    def _hear(self, stranger: _Stranger) -> None:
        """Read what is there of a hello; park its sender once it is complete."""
        try:
            missing = wire.HELLO_BYTES - len(stranger.data)
            data = stranger.sock.recv(missing)
            if not data:
                raise ProtocolError(stranger.address, "hung up before saying hello")
            stranger.data += data
            if wire.speaks_other_version(stranger.data):
                self._tell_version(stranger.sock)
                raise ProtocolError(stranger.address, "speaks another version")
            if len(stranger.data) < wire.HELLO_BYTES:
                return
            hello = wire.decode_hello(bytes(stranger.data), stranger.address)
        except BlockingIOError:
            if stranger.until.is_over():
                self._show_out(stranger, f"{stranger.address}: never said hello")
            return
        except (OSError, ProtocolError) as exc:
            self._show_out(stranger, str(exc))
            return
        self._strangers.remove(stranger)
        self._park(Visitor(stranger.sock, hello, stranger.address))

    def _tell_version(self, sock: socket.socket) -> None:
        """So that the other side learns why it is shown out."""
        answer = wire.Answer(
            status=wire.Status.BAD_VERSION,
            rank=0,
            incarnation=bytes(16),
            host=bytes(16),
        )
        with contextlib.suppress(OSError):
            sock.send(wire.encode_answer(answer))

    def _park(self, visitor: Visitor) -> None:
        if len(self._parked) >= MAX_PARKED:
            self._forget_the_gone()
        if len(self._parked) >= MAX_PARKED:
            self._reject(f"{visitor.address}: too many connections wait")
            visitor.sock.close()
        else:
            self._parked.append(visitor)

    def _forget_the_gone(self) -> None:
        for visitor in [v for v in self._parked if tcp.has_hung_up(v.sock)]:
            self._parked.remove(visitor)
            visitor.sock.close()

    def _show_out(self, stranger: _Stranger, why: str) -> None:
        self._strangers.remove(stranger)
        stranger.sock.close()
        self._reject(why)

    def _reject(self, why: str) -> None:
        self.rejected = [*self.rejected[-31:], why]

    def close(self) -> None:
        """Stop listening; everybody who waits is shown out."""
        for sock in self._listening():
            sock.close()
        for stranger in self._strangers:
            stranger.sock.close()
        for visitor in self._parked:
            visitor.sock.close()
        self._strangers.clear()
        self._parked.clear()
        if self.door and not self.door.startswith(b"@"):
            with contextlib.suppress(OSError):
                os.unlink(door_path(self.door))


def door_path(door: bytes) -> str | bytes:
    """The Unix socket address behind the name in an answer.

    "@name" is Linux's abstract namespace: no file, and other network namespaces do not
    see it. Elsewhere it is a file in the temporary directory, removed on close.
    """
    if door.startswith(b"@"):
        return b"\0" + door[1:]
    return os.path.join(tempfile.gettempdir(), os.path.basename(door.decode()))


def _open_door() -> tuple[socket.socket | None, bytes]:
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "send_fds"):
        return None, b""
    prefix = b"@" if sys.platform == "linux" else b""
    door = prefix + b"rl-" + secrets.token_hex(10).encode()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(door_path(door))
    except OSError as exc:
        sock.close()
        raise ConfigError(f"cannot open a Unix socket: {exc.strerror or exc}") from exc
    sock.listen(tcp.BACKLOG)
    sock.setblocking(False)
    return sock, door
