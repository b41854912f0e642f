"""Links over stream sockets (TCP, TLS, Unix, socketpairs), one or several per peer.

This is where bytes of tensors leave the machine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from ringleader.errors import PeerLost
from ringleader.transport.link import POLLIN, POLLOUT, lost
from ringleader.transport.sealed_writer import SealedWriter
from ringleader.transport.secure_socket import SecureSocket

STRIPE_BYTES = 256 << 10
"""Bytes sent over one of several connections before the next one takes over: below
the usual send buffer, so that all connections stay busy; large enough to cost few
calls."""


class SocketLink:
    """A link over one connected socket, which it owns."""

    def __init__(self, sock: socket.socket, peer: int, kind: str) -> None:
        self.peer = peer
        self.kind = kind
        self.sock = sock
        self._send = sock.send
        self._recv_into = sock.recv_into
        self._secure = sock if isinstance(sock, SecureSocket) else None
        self._sent = self._received = 0
        self.sends_behind = False
        self._writer: SealedWriter | None = None
        """The one with a thread."""
        self._send_behind: Callable[[memoryview], int] = self._send

    def use_thread(self) -> None:
        """Let ``try_send_behind`` use a thread, if this link seals its records."""
        if self._secure is not None and self._secure.writer is not None:
            # Imported here, so that plain groups do not need cryptography.
            from ringleader.identity.record_cipher import frees_gil

            if not frees_gil():
                return
            self._writer = self._secure.writer
            self._writer.use_thread()
            self._send_behind = self._secure.send_behind
            self.sends_behind = True

    @property
    def sent_bytes(self) -> int:
        """See Link."""
        return self._sent if self._secure is None else self._secure.sent_bytes

    @property
    def received_bytes(self) -> int:
        """See Link."""
        return self._received if self._secure is None else self._secure.received_bytes

    def try_send(self, view: memoryview) -> int:
        """See Link."""
        return self._try(self._send, view)

    def try_send_behind(self, view: memoryview) -> int:
        """See Link."""
        return self._try(self._send_behind, view)

    def stop_sending(self) -> None:
        """See Link."""
        if self._writer is not None:
            self._writer.stop()

    def _try(self, send: Callable[[memoryview], int], view: memoryview) -> int:
        try:
            sent = send(view)
        except BlockingIOError:
            return 0
        except OSError as exc:
            raise lost(self.peer, exc) from exc
        self._sent += sent
        return sent

    def try_recv_into(self, view: memoryview) -> int:
        """See Link."""
        try:
            received = self._recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as exc:
            raise lost(self.peer, exc) from exc
        if received == 0 and len(view) > 0:
            raise PeerLost(self.peer, "closed the connection")
        self._received += received
        return received

    def arm(self, *, sending: bool, receiving: bool) -> list[tuple[int, int]] | None:
        """See Link."""
        if receiving and self.has_pending():
            return None
        if sending and self._writer is not None and self._writer.has_moved():
            return None
        events = (POLLOUT if sending else 0) | (POLLIN if receiving else 0)
        return [(self.sock.fileno(), events)]

    def has_pending(self) -> bool:
        """Return whether decrypted bytes are here that polling would not report."""
        return self._secure is not None and self._secure.has_pending()

    def disarm(self) -> None:
        """See Link."""

    def close(self) -> None:
        """See Link."""
        self.sock.close()


class StripedLink:
    """A link over several connections used in turn, for long, fat networks.

    Both sides switch to the next connection after every ``STRIPE_BYTES`` of the stream,
    so the order is kept without any header.
    """

    def __init__(self, links: list[SocketLink]) -> None:
        self.peer = links[0].peer
        self.kind = f"{links[0].kind} x {len(links)}"
        self.sends_behind = False
        self._links = links
        self._sent = 0
        self._received = 0

    @property
    def sent_bytes(self) -> int:
        """See Link."""
        return sum(link.sent_bytes for link in self._links)

    @property
    def received_bytes(self) -> int:
        """See Link."""
        return sum(link.received_bytes for link in self._links)

    def try_send_behind(self, view: memoryview) -> int:
        """See Link."""
        return self.try_send(view)

    def stop_sending(self) -> None:
        """See Link."""

    def _at(self, position: int) -> tuple[SocketLink, int]:
        """Return the connection that carries ``position``, and how many bytes it
        takes."""
        stripe, offset = divmod(position, STRIPE_BYTES)
        return self._links[stripe % len(self._links)], STRIPE_BYTES - offset

    def try_send(self, view: memoryview) -> int:
        """See Link."""
        link, room = self._at(self._sent)
        sent = link.try_send(view[:room])
        self._sent += sent
        return sent

    def try_recv_into(self, view: memoryview) -> int:
        """See Link."""
        link, room = self._at(self._received)
        received = link.try_recv_into(view[:room])
        self._received += received
        return received

    def arm(self, *, sending: bool, receiving: bool) -> list[tuple[int, int]] | None:
        """See Link. Sending and receiving may wait on different connections."""
        receiver, _ = self._at(self._received)
        if receiving and receiver.has_pending():
            return None
        out, into = self._at(self._sent)[0].sock, receiver.sock
        wanted = [(out.fileno(), POLLOUT)] if sending else []
        if receiving and sending and into is out:
            return [(out.fileno(), POLLOUT | POLLIN)]
        return wanted + ([(into.fileno(), POLLIN)] if receiving else [])

    def disarm(self) -> None:
        """See Link."""

    def close(self) -> None:
        """See Link."""
        for link in self._links:
            link.close()
