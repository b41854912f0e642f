"""Who comes to our door: accept, prove, hear the hello, keep visitors until asked for.

There is no thread: whoever waits for a peer pumps the listener. A connection for a
group that is not being formed yet stays parked, unanswered and unread, so a peer that
is early waits in its socket instead of being refused. With a trust, TLS comes before
the hello, a step at a time. Strangers are bounded in number and time, each address for
itself, so that one that opens many connections stands in its own way only.
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
from ringleader.transport.door import door_path, is_same_user, open_door
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.tls import SecureSocket, Trust
from ringleader.wire import hello as wire

GREETING_S = 5.0
"""For TLS and hello together; who is not done by then is shown out."""
MAX_STRANGERS = 64
MAX_PER_ADDRESS = 8
CHANCE_S = 0.25
"""Whoever came less than this ago is not sent away for the next of its address: many
ranks of one host come at once, and all of them get in if they are taken in turn."""
ACCEPT_AT_ONCE = 64
"""Then those who are in are heard again: a flood must not keep us at the door."""
MAX_PARKED = 1024
NO_ROOM_S = 0.01
"""Where nobody can be let in: the next look would find the same at once."""
REMEMBERED = 32
TLS_HANDSHAKE = b"\x16\x03"
"""How every TLS client begins."""


@dataclass(slots=True)
class Visitor:
    """A connection whose hello we have read."""

    sock: socket.socket
    hello: wire.Hello
    address: str
    node: str = ""
    """Who it is, where TLS has proven that."""


@dataclass(slots=True, eq=False)
class _Stranger:
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
    def has_knocked(self) -> bool:
        """Whether it has shown that it knows the secret of our cluster."""
        return isinstance(self.sock, SecureSocket) and self.sock.has_spoken

    def had_its_chance(self) -> bool:
        return self.until.left_s() < GREETING_S - CHANCE_S


class Listener:
    """The listening sockets of one rank. One thread at a time."""

    def __init__(
        self,
        sock: socket.socket,
        trust: Trust | None = None,
        *,
        with_door: bool = True,
    ) -> None:
        self.sock = sock
        self.port: int = sock.getsockname()[1]
        self.trust = trust
        """What TLS needs, for those who come and those we dial; None: plain TCP."""
        self.rejected: list[str] = []
        """Why the last strangers were turned away, for status and tests."""
        self._strangers: list[_Stranger] = []
        self._parked: list[Visitor] = []
        self.door = b""
        self._door_sock: socket.socket | None = None
        if with_door:
            self._door_sock, self.door = open_door()

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
        wanted = [(s.fileno(), POLLIN) for s in self._listening()]
        for stranger in self._strangers:
            events = POLLIN
            if isinstance(stranger.sock, SecureSocket) and stranger.sock.owes:
                events |= POLLOUT
            wanted.append((stranger.sock.fileno(), events))
        wait_ready(wanted, min(deadline.left_s(), 0.5))
        for stranger in list(self._strangers):
            self._hear(stranger)
        for listening in self._listening():
            self._accept(listening)

    def _listening(self) -> list[socket.socket]:
        return [self.sock] + ([self._door_sock] if self._door_sock else [])

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as exc:  # no descriptor left, or gone before we came
                self._reject(f"somebody could not be let in: {exc.strerror}")
                time.sleep(NO_ROOM_S)
                return
            host, name = "", "this host"
            if isinstance(address, tuple):
                host, name = address[0], f"{address[0]}:{address[1]}"
            try:
                self._admit(sock, host, name)
            except (OSError, PeerError) as exc:
                sock.close()
                self._reject(f"{name}: {exc}")

    def _admit(self, sock: socket.socket, host: str, name: str) -> None:
        """Let somebody say hello, and listen at once: it may have done so already."""
        if not host and not is_same_user(sock):
            raise PeerUntrusted("the Unix door", "another user of this host came")
        tcp.tune(sock)
        if host and self.trust is not None:
            sock = SecureSocket(sock, self.trust, name, is_server=True)
        stranger = _Stranger(sock, host, name, Deadline.after(GREETING_S))
        self._strangers.append(stranger)
        self._hear(stranger)
        if stranger in self._strangers:
            self._make_room(stranger)

    def _make_room(self, newcomer: _Stranger) -> None:
        """One too many: the oldest of the busiest address goes.

        Those who know the secret stay before those who have not shown it.
        """
        counts = Counter(stranger.host for stranger in self._strangers)
        busiest = newcomer.host
        if counts[busiest] <= MAX_PER_ADDRESS:
            if len(self._strangers) <= MAX_STRANGERS:
                return
            busiest = counts.most_common(1)[0][0]
        crowd = [each for each in self._strangers if each.host == busiest]
        goes = min(crowd, key=lambda each: each.has_knocked)
        is_better = newcomer.has_knocked and not goes.has_knocked
        if newcomer in crowd and not is_better and not goes.had_its_chance():
            goes = newcomer
        self._show_out(goes, f"{goes.address}: gave way to others, silent so far")

    def _hear(self, stranger: _Stranger) -> None:
        """Read what is there of a hello; park its sender once it is complete."""
        try:
            hello = self._read_hello(stranger)
        except BlockingIOError:
            if stranger.until.is_over():
                self._show_out(stranger, f"{stranger.address}: never said hello")
            return
        except OSError as exc:
            why = exc.strerror or exc
            self._show_out(stranger, f"{stranger.address}: while greeting: {why}")
            return
        except PeerError as exc:
            if isinstance(exc, PeerUntrusted):
                self._tell(stranger.sock, wire.Status.WRONG_NAMESPACE)
            self._show_out(stranger, str(exc))
            return
        if hello is not None:
            self._strangers.remove(stranger)
            node = ""
            if isinstance(stranger.sock, SecureSocket):
                node = stranger.sock.node
            self._park(Visitor(stranger.sock, hello, stranger.address, node))

    def _read_hello(self, stranger: _Stranger) -> wire.Hello | None:
        """The hello once it is complete; raises when it is none."""
        data = stranger.sock.recv(wire.HELLO_BYTES - len(stranger.data))
        if not data:
            raise ProtocolError(stranger.address, "hung up before saying hello")
        stranger.data += data
        if wire.speaks_other_version(stranger.data):
            self._tell(stranger.sock, wire.Status.BAD_VERSION)
            raise ProtocolError(stranger.address, "speaks another version")
        if self.trust is None and stranger.data.startswith(TLS_HANDSHAKE):
            # Any word that is not TLS tells it so.
            self._tell(stranger.sock, wire.Status.BAD_VERSION)
            raise ProtocolError(stranger.address, "speaks TLS, and we do not")
        if len(stranger.data) < wire.HELLO_BYTES:
            return None
        hello = wire.decode_hello(bytes(stranger.data), stranger.address)
        if stranger.is_local != (hello.purpose is wire.Purpose.SHM):
            text = f"hello: {hello.purpose.name} does not come this way"
            raise ProtocolError(stranger.address, text)
        return hello

    def _tell(self, sock: socket.socket, status: wire.Status) -> None:
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
        tcp.part(stranger.sock)
        self._reject(why)

    def _reject(self, why: str) -> None:
        self.rejected = [*self.rejected[1 - REMEMBERED :], why]

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
