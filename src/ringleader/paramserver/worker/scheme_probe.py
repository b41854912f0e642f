"""Finds out whether a server speaks HTTPS where the link says HTTP, or the reverse."""

from __future__ import annotations

import contextlib
import socket
import ssl
from urllib.parse import urlsplit

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.join_link import JoinLink

_PROBE_S = 5.0
"""Time for one connection: the server was just reached, so it answers quickly."""
_PLAIN = b"HEAD /v1/status HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"


def check_scheme(link: JoinLink) -> None:
    """Raise ConfigError with the right address if the server speaks the other one.

    Returns if it does not, or cannot be reached.
    """
    parts = urlsplit(link.url)
    if parts.scheme == "http":
        if _speaks_tls(parts.hostname or "", parts.port or 80):
            right = f"https:{link.url.removeprefix('http:')}"
            how = "or the whole link that 'ringleader serve' printed"
            raise ConfigError(
                f"{link.url}: this server speaks HTTPS; use {right}, {how}"
            )
        return
    if not _speaks_http(parts.hostname or "", parts.port or 443):
        return
    text = f"{link.url}: this server speaks plain HTTP"
    if link.fingerprint is not None:
        how = "so it cannot prove that it has the key in the link; ask for its new link"
        raise ConfigError(f"{text}, {how}")
    right = f"http:{link.url.removeprefix('https:')}"
    how = "if it leads into a tunnel of yours: everybody on the way can read it"
    raise ConfigError(f"{text}; use {right}, {how}")


def _speaks_tls(host: str, port: int) -> bool:
    """Return whether a TLS server answers; who it is does not matter here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        contextlib.suppress(OSError, UnicodeError, ValueError),
        socket.create_connection((host, port), _PROBE_S) as line,
        context.wrap_socket(line, server_hostname=host),
    ):
        return True
    return False


def _speaks_http(host: str, port: int) -> bool:
    with (
        contextlib.suppress(OSError, UnicodeError, ValueError),
        socket.create_connection((host, port), _PROBE_S) as line,
    ):
        line.sendall(_PLAIN)
        return line.recv(16).startswith(b"HTTP/1.")
    return False
