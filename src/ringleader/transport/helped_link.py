"""HelpedLink: a link with connections of their own for each direction, and threads.

Encryption takes longer than the wire, and one TLS connection can be used by one thread
at a time. Where cores are idle, a pair of ranks therefore has connections that carry
bytes one way only: one thread encrypts and sends, one thread per connection receives
and decrypts (``one_way.py``), and the thread of the engine only copies and adds.

Both sides change to the next connection after every ``STRIPE_BYTES`` of a direction, so
the order is kept without any header. Helpers get large pieces only: small messages take
no detour.
"""

from __future__ import annotations

import contextlib
import socket

from ringleader.transport.link import POLLIN, POLLOUT
from ringleader.transport.one_way import Inlet, Outlet, turn_at
from ringleader.transport.socket_link import SocketLink

LARGE_BYTES = 128 << 10
"""Pieces from this size are given to helpers. More than the longest prepared message;
less would cost more in waking a thread than it takes to encrypt."""


class HelpedLink:
    """A link over ``outs`` and ``ins``, connections to one peer, in its order.

    Without ``has_helpers`` the thread of the engine does everything, as on a host
    without idle cores whose peer has some.
    """

    def __init__(
        self, outs: list[SocketLink], ins: list[SocketLink], *, has_helpers: bool
    ) -> None:
        self.peer = outs[0].peer
        self.kind = outs[0].kind
        self._links = outs + ins
        self._large = LARGE_BYTES if has_helpers else 1 << 62
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._is_armed = self._has_rung = False
        self._outlet = Outlet(outs, self._report)
        self._inlets = [Inlet(link, self._report) for link in ins]
        self._sent = self._asked = self._received = 0
        """Bytes of the streams: told to be sent, asked for, given to the engine."""

    @property
    def sent_bytes(self) -> int:
        """See Link."""
        return sum(link.sent_bytes for link in self._links)

    @property
    def received_bytes(self) -> int:
        """See Link."""
        return sum(link.received_bytes for link in self._links)

    def try_send(self, view: memoryview) -> int:
        """See Link. What a helper has been given begins every view until it is sent."""
        outlet, sent = self._outlet, self._sent
        if outlet.given == sent and len(view) < self._large:
            count = outlet.send_now(view)
        else:
            outlet.give(view[outlet.given - sent :])
            count = min(outlet.sent - sent, len(view))
            if not count and outlet.failure is not None:
                raise outlet.failure
        self._sent += count
        return count

    def try_recv_into(self, view: memoryview) -> int:
        """See Link."""
        inlet, room = turn_at(self._inlets, self._received)
        if self._asked == self._received and len(view) < self._large:
            count = inlet.take_now(view[:room])
            self._asked = self._received = self._received + count
            return count
        self._ask(self._received + len(view))
        done = 0
        while done < len(view):
            inlet, room = turn_at(self._inlets, self._received)
            count = inlet.take(view[done : done + room])
            if not count:
                if not done and inlet.failure is not None:
                    raise inlet.failure
                break
            done += count
            self._received += count
        return done

    def _ask(self, until: int) -> None:
        """Let helpers receive up to this position of the stream."""
        while self._asked < until:
            inlet, room = turn_at(self._inlets, self._asked)
            count = min(room, until - self._asked)
            if not inlet.ask(count):
                return
            self._asked += count

    def arm(self, *, sending: bool, receiving: bool) -> list[tuple[int, int]] | None:
        """See Link. Helpers ring the bell for what they have."""
        self._is_armed = True
        asked = [self._wanted_to_receive] if receiving else []
        asked += [self._wanted_to_send] if sending else []
        wanted = [ask() for ask in asked]
        return None if None in wanted else [each for each in wanted if each]

    def _wanted_to_receive(self) -> tuple[int, int] | None:
        """What to poll; None if bytes are here."""
        inlet, _ = turn_at(self._inlets, self._received)
        if self._asked > self._received:
            is_here = inlet.received > inlet.taken or inlet.failure is not None
            return None if is_here else (self._bell.fileno(), POLLIN)
        is_here = inlet.link.has_pending()
        return None if is_here else (inlet.link.sock.fileno(), POLLIN)

    def _wanted_to_send(self) -> tuple[int, int] | None:
        """What to poll; None if a helper has sent more."""
        outlet = self._outlet
        if outlet.given > self._sent:
            has_sent = outlet.sent > self._sent or outlet.failure is not None
            return None if has_sent else (self._bell.fileno(), POLLIN)
        link, _ = outlet.at(self._sent)
        return link.sock.fileno(), POLLOUT

    def disarm(self) -> None:
        """See Link."""
        self._is_armed = self._has_rung = False
        if self._outlet.given > self._sent or self._asked > self._received:
            # Perhaps nobody has rung; but a ring that came late must not wake for ever.
            with contextlib.suppress(OSError):
                self._bell.recv(64)

    def _report(self) -> None:
        """Wake the engine if it sleeps; called by helpers."""
        if self._is_armed and not self._has_rung:
            self._has_rung = True
            with contextlib.suppress(OSError):
                self._ringer.send(b"\0")

    def close(self) -> None:
        """See Link."""
        self._outlet.close()
        for inlet in self._inlets:
            inlet.close()
        self._bell.close()
        self._ringer.close()
