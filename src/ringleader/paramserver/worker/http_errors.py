"""What HTTP and TLS raise, as errors of ours."""

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
from ringleader.paramserver.worker.server_address import NOT_THE_KEY
from ringleader.paramserver.worker.server_messages import SERVER


class UnverifiedCertificate(PeerUntrusted):
    """No authority vouches for the server's certificate; a PIN might."""


@contextlib.contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Where requests to ``url`` are made."""
    try:
        yield
    except RingleaderError:
        raise
    except httpx2.ConnectError as exc:
        raise _no_connection(exc, url) from exc
    except httpx2.TimeoutException as exc:
        raise PeerLost(SERVER, f"{url} is silent") from exc
    except httpx2.TransportError as exc:
        raise PeerLost(SERVER, f"the line to {url} broke ({exc})") from exc
    except RuntimeError as exc:  # closed by a thread that saw the server move
        raise PeerLost(SERVER, f"the line to {url} was dropped ({exc})") from exc


def _no_connection(exc: httpx2.ConnectError, url: str) -> PeerError:
    cause = _tls_error(exc)
    if cause is None:
        return PeerUnreachable(SERVER, f"nobody answers at {url} ({exc})")
    if NOT_THE_KEY in str(cause):
        text = f"{url} is another server: {NOT_THE_KEY}; ask for the link again"
        return PeerUntrusted(SERVER, text)
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = f"nobody vouches for {url}; use the whole link, with what follows #"
        return UnverifiedCertificate(SERVER, f"{text}, or a PIN")
    return PeerUnreachable(SERVER, f"no TLS at {url} ({exc})")


def _tls_error(exc: BaseException) -> ssl.SSLError | None:
    """What TLS said, where that is the cause."""
    seen: BaseException | None = exc
    while seen is not None and not isinstance(seen, ssl.SSLError):
        seen = seen.__cause__ or seen.__context__
    return seen
