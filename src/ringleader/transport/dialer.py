"""Dialer opens connections to one rank: it tries all addresses and checks who
answers.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerError,
    PeerLost,
    PeerUnreachable,
)
from ringleader.ids import NodeId, short
from ringleader.transport import tcp_socket
from ringleader.transport.link import wait_ready
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.socket_link import SocketLink
from ringleader.transport.tls_credentials import TlsCredentials
from ringleader.wire import hello as wire

_log = logging.getLogger(__name__)

SILENCE_S = 5.0
"""If a peer has several addresses, one that connects and then stays silent gets this
long. It may belong to another machine with the same private address. But the peer
may also be busy with others, so the address is tried again after the rest."""
REPORT_S = 5.0
"""A peer that is not reached for this long is reported: people look for the reason."""
REPORT_EVERY_S = 30.0
REACH_S = 20.0
"""A peer that has started is given up if none of its addresses takes a connection for
this long: its kernel answers even while its process is busy."""
MAX_ADDRESSES = 16
"""Addresses of one peer; more than any machine has that would be dialed."""

Greet = Callable[[socket.socket, Deadline], wire.HelloReply]
"""Says hello on a new connection and returns the answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of a rank, and the node that must answer there."""

    addresses: tuple[tcp_socket.Address, ...]
    node: NodeId | None = None
    """None: any member of the cluster may answer."""
    channel: int = 0
    """64 bits that tell apart the groups at one listener; 0: there is one only."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.addresses) <= MAX_ADDRESSES:
            count = len(self.addresses)
            raise ConfigError(f"a rank has 1 to {MAX_ADDRESSES} addresses, not {count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DialLimits:
    """When to give up a connection to one peer, before the time of all is over."""

    timeout_s: float | None = None
    """Limit for each connection; None: that of the forming of the group."""
    tries: int | None = None
    """How often all addresses of the peer are tried; None: while there is time."""
    reach_s: float | None = None
    """How long no address may take a connection; None: the peer may start later. Where
    there is a ``timeout_s``, that counts."""


class Dialer:
    """Opens connections to one rank. Use it from one thread at a time."""

    def __init__(
        self,
        to: int,
        endpoint: Endpoint,
        credentials: TlsCredentials | None,
        deadline: Deadline,
        *,
        is_listening: bool = False,
        limits: DialLimits | None = None,
    ) -> None:
        self._to = to
        self._node = endpoint.node
        self._addresses = list(endpoint.addresses)
        self._credentials = credentials
        self._whole = deadline
        self._limits = limits or DialLimits()
        self._is_listening = is_listening
        self._begin()
        self._report_at = Deadline.after(REPORT_S)
        self._refusal: PeerError | None = None

    def open(self, greet: Greet) -> tuple[socket.socket, wire.HelloReply]:
        """Return a connection to the expected peer, and its answer to the hello.

        If an address refuses us, or another node answers there, that address is not
        tried again; the others are.
        """
        self._begin()
        while True:
            sock, address = self._dial()
            try:
                sock, answer = self._handshake(sock, address, greet)
            except PeerError as exc:
                self._learn(address, exc)
            else:
                self._addresses = [address, *self._all_but(address)]
                return sock, answer

    def _begin(self) -> None:
        """Begin one connection, with all its tries and its time."""
        limit_s = self._limits.timeout_s
        self._deadline = self._whole if limit_s is None else self._whole.within(limit_s)
        self._pauses = tcp_socket.retry_pauses(self._limits.tries)

    def _all_but(self, address: tcp_socket.Address) -> list[tcp_socket.Address]:
        return [each for each in self._addresses if each != address]

    def _learn(self, address: tcp_socket.Address, exc: PeerError) -> None:
        """Decide after a failure at ``address``: try again, try the others, or
        raise."""
        others = self._all_but(address)
        if isinstance(exc, PeerLost | DeadlineExceeded):
            # The listener went away between connect and hello (it may be restarting),
            # or another program listens there.
            self._report(f"{tcp_socket.format_addresses([address])} ({exc.text})")
            is_due = tcp_socket.sleep_before_retry(self._pauses, self._deadline)
            if not is_due or self._deadline.is_over():
                raise exc
            self._addresses = [*others, address]
        elif others:
            self._addresses, self._refusal = others, exc
        else:
            raise exc

    def _dial(self) -> tuple[socket.socket, tcp_socket.Address]:
        deadline = self._deadline
        if self._limits.reach_s is not None and self._limits.timeout_s is None:
            deadline = deadline.within(self._limits.reach_s)
        try:
            return tcp_socket.dial_any(
                self._addresses,
                self._to,
                deadline,
                is_listening=self._is_listening,
                pauses=None if self._limits.tries is None else self._pauses,
                on_failure=self._report,
            )
        except PeerUnreachable as exc:
            raise self._refusal or exc from exc

    def _report(self, tried: str) -> None:
        """Tell the user now and then where the peer was looked for."""
        if self._report_at.is_over():
            self._report_at = Deadline.after(REPORT_EVERY_S)
            who = f"rank {self._to}"
            if self._node is not None:
                who += f" ({short(self._node)})"
            _log.warning("%s is not reached yet: %s; trying on", who, tried)

    def _handshake(
        self, sock: socket.socket, address: tcp_socket.Address, greet: Greet
    ) -> tuple[socket.socket, wire.HelloReply]:
        deadline = self._deadline
        if len(self._addresses) > 1:
            deadline = deadline.within(SILENCE_S)
        try:
            if self._credentials is not None:
                made = SecureSocket(
                    sock,
                    self._credentials,
                    self._to,
                    expect=self._node,
                    host=address[0],
                )
                sock = secure(made, deadline)
            return sock, greet(sock, deadline)
        except BaseException:
            sock.close()
            raise


class Opener(Protocol):
    """Opens connections to one rank, as Dialer does."""

    def open(self, greet: Greet) -> tuple[socket.socket, wire.HelloReply]:
        """Return a connection to the rank, and its answer to the hello."""
        ...


class Routes(Protocol):
    """How the ranks of a group reach each other."""

    def dialer(self, to: int, deadline: Deadline) -> Opener:
        """Return what opens connections to rank ``to``."""
        ...

    def link(self, sock: socket.socket, peer: int) -> SocketLink:
        """Return a link over an open connection."""
        ...


class DirectRoutes:
    """Every rank dials the others at their own addresses.

    ``are_listening``: all of them have started, so who refuses connections is gone.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        credentials: TlsCredentials | None,
        *,
        are_listening: bool = False,
        limits: DialLimits | None = None,
    ) -> None:
        self._limits = limits
        self._endpoints = endpoints
        self._credentials = credentials
        self._are_listening = are_listening

    def dialer(self, to: int, deadline: Deadline) -> Dialer:
        """See Routes."""
        return Dialer(
            to,
            self._endpoints[to],
            self._credentials,
            deadline,
            is_listening=self._are_listening,
            limits=self._limits,
        )

    def link(self, sock: socket.socket, peer: int) -> SocketLink:
        """See Routes."""
        return SocketLink(sock, peer, "tcp" if self._credentials is None else "tls")


def secure(made: SecureSocket, deadline: Deadline) -> SecureSocket:
    """Run the TLS handshake, as the client or the server; the peer is proven before
    ``deadline``."""
    who = made.who
    try:
        while events := _step(made, who):
            if deadline.is_over():
                text = f"silent during the handshake for {deadline.after_s:.1f} s"
                raise DeadlineExceeded(who, text)
            wait_ready([(made.fileno(), events)], deadline.wait_s())
    except BaseException:
        made.close()
        raise
    return made


def _step(sock: SecureSocket, who: int | str) -> int:
    try:
        return sock.shake()
    except OSError as exc:
        raise PeerLost(who, f"during the handshake: {exc.strerror or exc}") from exc
