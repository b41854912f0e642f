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
        self._sent = self._received = 0
        """Positions in the two streams, as the engine knows them."""
        self._given = self._asked = 0
        """Bytes beyond these positions that helpers were told to send, to receive."""
        self._told = 0
        """Bytes that the helper has sent and the engine knows of."""
        self._out, self._send_room = self._outlet.at(0)
        self._in, self._receive_room = turn_at(ins, 0)
        """Who is next without helpers, and for how long."""

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
        size = len(view)
        if self._given or size >= self._large:
            return self._send_helped(view)
        if size > self._send_room:
            self._out, self._send_room = self._outlet.at(self._sent)
            view = view[: self._send_room]
        sent = self._out.try_send(view)
        self._sent += sent
        self._send_room -= sent
        return sent

    def _send_helped(self, view: memoryview) -> int:
        outlet = self._outlet
        outlet.give(view[self._given :], self._sent + self._given)
        sent = min(outlet.sent - self._told, len(view))
        if not sent and outlet.failure is not None:
            raise outlet.failure
        self._told += sent
        self._given = outlet.given - self._told
        self._sent += sent
        self._send_room = 0
        return sent

    def try_recv_into(self, view: memoryview) -> int:
        """See Link."""
        size = len(view)
        if self._asked or size >= self._large:
            return self._receive_helped(view)
        if size > self._receive_room:
            inlet, self._receive_room = turn_at(self._inlets, self._received)
            self._in = inlet.link
            view = view[: self._receive_room]
        received = self._in.try_recv_into(view)
        self._received += received
        self._receive_room -= received
        return received

    def _receive_helped(self, view: memoryview) -> int:
        self._ask(len(view))
        self._receive_room = done = 0
        while done < len(view):
            inlet, room = turn_at(self._inlets, self._received)
            count = inlet.take(view[done : done + room])
            if not count:
                if not done and inlet.failure is not None:
                    raise inlet.failure
                break
            done += count
            self._received += count
            self._asked -= count
        return done

    def _ask(self, num_bytes: int) -> None:
        """Let helpers receive so many bytes beyond what the engine has."""
        while self._asked < num_bytes:
            inlet, room = turn_at(self._inlets, self._received + self._asked)
            count = min(room, num_bytes - self._asked)
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
        if self._asked:
            is_here = inlet.received > inlet.taken or inlet.failure is not None
            return None if is_here else (self._bell.fileno(), POLLIN)
        is_here = inlet.link.has_pending()
        return None if is_here else (inlet.link.sock.fileno(), POLLIN)

    def _wanted_to_send(self) -> tuple[int, int] | None:
        """What to poll; None if a helper has sent more."""
        outlet = self._outlet
        if self._given:
            has_sent = outlet.sent > self._told or outlet.failure is not None
            return None if has_sent else (self._bell.fileno(), POLLIN)
        link, _ = outlet.at(self._sent)
        return link.sock.fileno(), POLLOUT

    def disarm(self) -> None:
        """See Link."""
        self._is_armed = self._has_rung = False
        if self._given or self._asked:
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
