"""Finding one peer: all its addresses, who answers there, and what it says to us."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerError,
    PeerLost,
    PeerUnreachable,
)
from ringleader.ids import NodeId
from ringleader.transport import tcp
from ringleader.transport.link import wait_ready
from ringleader.transport.secure_socket import SecureSocket, TlsCredentials
from ringleader.wire import hello as wire

SILENCE_S = 5.0
"""Of several addresses, one that connects and then says nothing gets this long. It may
belong to somebody else who has the same private address, but our peer may also be busy
with others; so it is asked again after the rest."""
MAX_ADDRESSES = 16
"""Of one peer: more than any machine has that would be dialled."""

Greet = Callable[[socket.socket, Deadline], wire.Answer]
"""Says hello on a new connection and returns the answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a rank can be found, and which node must be there."""

    addresses: tuple[tcp.Address, ...]
    node: NodeId | None = None
    """None: any member of the cluster will do."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.addresses) <= MAX_ADDRESSES:
            count = len(self.addresses)
            raise ConfigError(f"a rank has 1 to {MAX_ADDRESSES} addresses, not {count}")


class Dialer:
    """Opens connections to one rank. One thread at a time."""

    def __init__(
        self,
        to: int,
        endpoint: Endpoint,
        credentials: TlsCredentials | None,
        deadline: Deadline,
    ) -> None:
        self._to = to
        self._node = endpoint.node
        self._addresses = list(endpoint.addresses)
        self._credentials = credentials
        self._deadline = deadline
        self._rests = tcp.retry_pauses()
        self._refusal: PeerError | None = None

    def open(self, greet: Greet) -> tuple[socket.socket, wire.Answer]:
        """A connection whose other side is who it should be, and its answer.

        Being refused, or finding somebody else there, is final for an address; the
        others are tried on.
        """
        self._rests = tcp.retry_pauses()
        while True:
            sock, address = self._dial()
            try:
                sock, answer = self._introduce(sock, greet)
            except PeerError as exc:
                self._learn(address, exc)
            else:
                self._addresses = [address, *self._but(address)]
                return sock, answer

    def _but(self, address: tcp.Address) -> list[tcp.Address]:
        return [each for each in self._addresses if each != address]

    def _learn(self, address: tcp.Address, exc: PeerError) -> None:
        """What failed at ``address``: go on there, elsewhere, or raise it."""
        others = self._but(address)
        if isinstance(exc, PeerLost | DeadlineExceeded):
            # Its listener went away between our two steps (it may be restarting), or
            # it is not our peer who listens there.
            tcp.sleep_before_retry(self._rests, self._deadline)
            if self._deadline.is_over():
                raise exc
            self._addresses = [*others, address]
        elif others:
            self._addresses, self._refusal = others, exc
        else:
            raise exc

    def _dial(self) -> tuple[socket.socket, tcp.Address]:
        try:
            return tcp.dial_any(self._addresses, self._to, self._deadline)
        except PeerUnreachable as exc:
            raise self._refusal or exc from exc

    def _introduce(
        self, sock: socket.socket, greet: Greet
    ) -> tuple[socket.socket, wire.Answer]:
        deadline = self._deadline
        if len(self._addresses) > 1:
            deadline = Deadline.after(min(SILENCE_S, deadline.left_s()))
        try:
            if self._credentials is not None:
                sock = secure(sock, self._credentials, self._to, deadline, self._node)
            return sock, greet(sock, deadline)
        except BaseException:
            sock.close()
            raise


def secure(
    sock: socket.socket,
    credentials: TlsCredentials,
    who: int | str,
    deadline: Deadline,
    node: NodeId | None = None,
) -> SecureSocket:
    """The dialling side: prove ourselves and the peer before ``deadline``."""
    made = SecureSocket(sock, credentials, who, expect=node)
    try:
        while events := _step(made, who):
            if deadline.is_over():
                text = f"silent during the handshake for {deadline.after_s:.1f} s"
                raise DeadlineExceeded(who, text)
            wait_ready([(made.fileno(), events)], deadline.left_s())
    except BaseException:
        made.close()
        raise
    return made


def _step(sock: SecureSocket, who: int | str) -> int:
    try:
        return sock.shake()
    except OSError as exc:
        raise PeerLost(who, f"during the handshake: {exc.strerror or exc}") from exc
