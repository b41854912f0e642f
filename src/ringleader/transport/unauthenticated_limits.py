"""Limits on connections that have not completed their handshake, and which to refuse.

Anybody on the network can open connections, so their number and their time are bounded,
per address as well as in total: an address that opens many connections displaces only
its own.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.transport.secure_socket import SecureSocket

HANDSHAKE_S = 5.0
"""Time for TLS and hello together; a connection that takes longer is refused."""
MAX_PENDING = 64
MAX_PER_ADDRESS = 8
MIN_PENDING_S = 0.25
"""A connection younger than this is not refused to make room for the next one of its
address: many ranks of one host may connect at once, and all get in one after
another."""


@dataclass(slots=True, eq=False)
class PendingConnection:
    """An accepted connection whose TLS handshake or hello is not complete."""

    sock: socket.socket
    host: str
    address: str
    until: Deadline
    data: bytearray = field(default_factory=bytearray)

    @property
    def is_local(self) -> bool:
        """True if it came through the Unix socket."""
        return not self.host

    @property
    def has_proven_secret(self) -> bool:
        """True once the peer has shown that it knows the secret of the cluster."""
        return isinstance(self.sock, SecureSocket) and self.sock.has_spoken

    @property
    def is_replaceable(self) -> bool:
        """True once it has had ``MIN_PENDING_S`` to say hello."""
        return self.until.left_s() < HANDSHAKE_S - MIN_PENDING_S


def connection_to_refuse(
    pending: Sequence[PendingConnection], newcomer: PendingConnection
) -> PendingConnection | None:
    """Return the connection to refuse now that ``newcomer`` is pending, or None.

    Over a limit, the oldest connection of the busiest address is refused. Connections
    that have proven the secret are kept in favour of those that have not.
    """
    counts = Counter(each.host for each in pending)
    busiest = newcomer.host
    if counts[busiest] <= MAX_PER_ADDRESS:
        if len(pending) <= MAX_PENDING:
            return None
        busiest = counts.most_common(1)[0][0]
    candidates = [each for each in pending if each.host == busiest]
    oldest = min(candidates, key=lambda each: each.has_proven_secret)
    is_better = newcomer.has_proven_secret and not oldest.has_proven_secret
    if newcomer in candidates and not is_better and not oldest.is_replaceable:
        return newcomer
    return oldest
