"""Refused TLS handshakes: the alert for the peer, and the reason for our own user."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

from ringleader.errors import PeerError
from ringleader.identity.certificates import tls_errors
from ringleader.transport import tcp_socket

MAX_REASONS = 8


class AlertSender:
    """Stands for a TLS context in asyncio, and sends the alert of a failed handshake.

    asyncio itself drops it and closes, and the peer would not learn why.
    """

    def __init__(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        self._context = context
        self._sock = sock.dup()  # asyncio closes the other one

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        **options: Any,  # noqa: ANN401 - those of ssl.SSLContext.wrap_bio
    ) -> ssl.SSLObject:
        """Do as the context does, with another ``do_handshake``."""
        made = self._context.wrap_bio(incoming, outgoing, **options)
        shake = made.do_handshake

        def do_handshake() -> None:
            try:
                shake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError:
                self._send_last(outgoing.read())
                raise

        made.do_handshake = do_handshake  # type: ignore[method-assign]
        return made

    def _send_last(self, alert: bytes) -> None:
        with contextlib.suppress(OSError):
            self._sock.send(alert)
            tcp_socket.close_gently(self._sock)

    def close(self) -> None:
        """Release the socket."""
        self._sock.close()


def note_refusal(
    reasons: dict[str, str], address: str, error: OSError | PeerError
) -> None:
    """Remember why a peer at ``address`` did not come in, for a few addresses."""
    if isinstance(error, ssl.SSLError):
        error = tls_errors.explain(address, error)
    if isinstance(error, PeerError):
        why = error.text
    else:
        why = "hung up in the handshake; does it accept our certificate?"
    reasons.pop(address, None)
    reasons[address] = why
    while len(reasons) > MAX_REASONS:
        del reasons[next(iter(reasons))]
