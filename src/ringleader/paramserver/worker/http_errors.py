"""Translates the errors of HTTP and TLS into Ringleader's."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

import httpx2

from ringleader.errors import (
    PeerError,
    PeerLost,
    PeerUnreachable,
    PeerUntrusted,
    RingleaderError,
)
from ringleader.paramserver.worker.pinned_tls import WRONG_KEY

SERVER = "the server"
"""The name of the server in errors."""


class UnverifiedCertificate(PeerUntrusted):
    """The server's certificate cannot be verified, unless by pairing with a PIN."""


class NoTLS(PeerUnreachable):
    """The server accepts connections, but no TLS handshake."""


@contextlib.contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Translate what requests to ``url`` raise within this context."""
    try:
        yield
    except RingleaderError:
        raise
    except httpx2.ConnectError as exc:
        raise _connect_error(exc, url) from exc
    except httpx2.TimeoutException as exc:
        raise PeerLost(SERVER, f"{url} does not answer") from exc
    except httpx2.TransportError as exc:
        raise PeerLost(SERVER, f"the connection to {url} broke ({exc})") from exc
    except RuntimeError as exc:  # another thread closed the client: the server moved
        raise PeerLost(SERVER, f"the connection to {url} was closed ({exc})") from exc


def _connect_error(exc: httpx2.ConnectError, url: str) -> PeerError:
    cause = _tls_error(exc)
    if cause is None:
        return PeerUnreachable(SERVER, f"cannot connect to {url} ({exc})")
    if WRONG_KEY in str(cause):
        text = f"{url} is another server: {WRONG_KEY}; ask for the link again"
        return PeerUntrusted(SERVER, text)
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = f"the certificate of {url} cannot be verified"
        how = "use the whole link, including what follows #, or a PIN"
        return UnverifiedCertificate(SERVER, f"{text}; {how}")
    return NoTLS(SERVER, f"no TLS at {url} ({exc})")


def _tls_error(exc: BaseException) -> ssl.SSLError | None:
    """Return the TLS error among the causes of an error, if there is one."""
    seen: BaseException | None = exc
    while seen is not None and not isinstance(seen, ssl.SSLError):
        seen = seen.__cause__ or seen.__context__
    return seen
