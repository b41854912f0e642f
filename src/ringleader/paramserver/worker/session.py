"""Sends requests to the server, and repeats them until it answers.

Every request of the protocol may be repeated. So a broken connection, a restarted
server and a lost response are handled alike: send again, after a pause that grows.
"""

from __future__ import annotations

import math
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar

import httpx2

from ringleader.deadline import Deadline
from ringleader.errors import (
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol.messages import ErrorAnswer, decode_message
from ringleader.paramserver.worker.http_errors import (
    SERVER,
    NoTLS,
    UnverifiedCertificate,
    translate_errors,
)
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.response_body import ResponseBody
from ringleader.paramserver.worker.scheme_probe import check_scheme
from ringleader.paramserver.worker.server_address import ServerAddress

T = TypeVar("T")
_Retryable = PeerUnreachable | PeerLost | PeerUntrusted
"""Errors that may be gone when a request is repeated."""

JSON = {"Content-Type": "application/json"}
LIMIT_BYTES = 256 << 10
"""Largest JSON response: many times a status with all workers."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_SLOWEST_PER_S = 2048
"""Bytes per second below which a connection counts as broken."""
_RESPONSE_S = 60.0
_SHOWN = 500
"""Characters of the server's sentences that are shown."""
_HANDLED_BY_CALLER = {401, 409, 412, 416, 422}


@dataclass(frozen=True, slots=True)
class Request:
    """A request that can be sent repeatedly."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    timeout_s: float | None = None
    """Limit of each wait for the network, if other than the default."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the server that the caller can act on."""

    status: int
    headers: httpx2.Headers
    body: bytes

    def decode(self, kind: type[T]) -> T:
        """Decode the message in the body; ProtocolError if it is not valid."""
        try:
            return decode_message(self.body, kind)
        except ValueError as exc:
            text = f"its response {self.status} is not valid: {exc}"
            raise ProtocolError(SERVER, text) from None

    def refusal(self) -> ErrorAnswer | None:
        """Return the error in the body; None if it is not one of the protocol's."""
        try:
            return self.decode(ErrorAnswer)
        except ProtocolError:
            return None

    def message(self) -> str:
        """Return the server's sentence for people."""
        refusal = self.refusal()
        return refusal.message[:_SHOWN] if refusal else f"it answered {self.status}"


class TryLater(PeerUnreachable):
    """The server cannot handle the request now."""

    pause_s: float = 0.0
    """Seconds that the server asked to wait."""


def backoff_s(failures: int, chance: float) -> float:
    """Return the pause after ``failures`` in a row; ``chance`` is from 0 to 1.

    It doubles up to half a minute. The random part keeps workers from returning all at
    once.
    """
    whole = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
    return whole * (0.5 + 0.5 * chance)


class Session:
    """An HTTP client for one server. Several threads may send at once."""

    def __init__(
        self, address: ServerAddress, observer: Observer, client: httpx2.Client
    ) -> None:
        self.token: Secret[str] | None = None
        self.pair_by_pin: Callable[[], None] | None = None
        """Verifies a self-signed certificate by PIN, and completes the address."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.leave_at_s = math.inf
        """Moment on the monotonic clock from which nothing is tried again."""
        self.address = address
        self._observer = observer
        self._client = client
        self._has_answered = False
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        address: ServerAddress,
        observer: Observer,
        context: ssl.SSLContext | None = None,
    ) -> Self:
        """Open a client for ``address``; ``context`` replaces its check of the key."""
        return cls(address, observer, address.open_client(context))

    def send(self, request: Request) -> Response:
        """Send a request until the server responds."""
        return self.retry(lambda: self.send_once(request))

    def retry(self, call: Callable[[], T], arrived: Callable[[], int] = lambda: 0) -> T:
        """Repeat ``call`` until it does not fail for want of a server.

        The pauses stay short as long as ``arrived`` grows from try to try.
        """
        failures, before = 0, 0
        while True:
            try:
                found = call()
            except (PeerUnreachable, PeerLost, PeerUntrusted) as exc:
                error = self._pair_if_unverified(exc)
                if error is None:
                    continue
                self._check_scheme(error)
                failures = 1 if arrived() > before else failures + 1
                before = arrived()
                self._pause(error, failures)
            else:
                if failures:
                    self._observer.reconnected()
                return found

    def send_once(self, request: Request, into: ResponseBody | None = None) -> Response:
        """Send a request once. A successful body goes to ``into``.

        Raises PeerUnreachable or PeerLost if it may be sent again, in which case
        ``into`` keeps what arrived; PeerRefused if it will always be refused.
        """
        headers = dict(request.headers)
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token.reveal()}"
        url, client = self.address.link.url, self._client
        timeout = request.timeout_s or client.timeout
        with (
            translate_errors(url),
            client.stream(
                request.method,
                url + request.path,
                headers=headers,
                content=bytes(request.body),
                timeout=timeout,
            ) as received,
        ):
            self._count(sent=len(request.body))
            has_it = into is not None and received.status_code in (200, 206)
            body = into if into is not None and has_it else ResponseBody(LIMIT_BYTES)
            self._read(received, body)
        self._has_answered = True
        data = b"" if has_it else bytes(body.data)
        response = Response(received.status_code, received.headers, data)
        # Responses to HEAD have no body, so a refusal cannot be told from a proxy's.
        # The request that follows it will be refused with a body.
        is_bare = request.method == "HEAD" and 400 <= response.status < 500
        return response if is_bare else _checked(response)

    def stop(self) -> None:
        """End all pauses; requests under way end by their own time limits."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, and close all connections."""
        self.stop()
        self._client.close()

    def _read(self, received: httpx2.Response, body: ResponseBody) -> None:
        if received.headers.get("Content-Encoding", "identity") != "identity":
            raise PeerLost(SERVER, "a proxy on the way compressed the response")
        if received.headers.get("Content-Type", "").startswith("text/html"):
            text = f"{received.status_code}: a web page answered; is the tunnel up?"
            raise _try_later(received.headers, text)
        deadline = Deadline.after(_RESPONSE_S + body.limit_bytes / _SLOWEST_PER_S)
        body.begin(received.status_code, received.headers)
        for block in received.iter_raw():
            self._count(received=len(block))
            body.add(block)
            if deadline.is_over():
                raise PeerLost(SERVER, f"a response took over {deadline.after_s:.0f} s")

    def _pair_if_unverified(self, exc: _Retryable) -> _Retryable | None:
        """Pair by PIN if ``exc`` is an unverified certificate.

        Returns None if that succeeded, or the error to wait for; raises if no PIN is
        right.
        """
        is_pairable = isinstance(exc, UnverifiedCertificate)
        if self.pair_by_pin is None or not (is_pairable and self.address.link.is_bare):
            return exc
        try:
            self.pair_by_pin()
        except (PeerUnreachable, PeerLost) as later:
            return later
        with self._lock:
            self._reopen()
        return None

    def _check_scheme(self, exc: _Retryable) -> None:
        """Raise ConfigError if the link says HTTP to a server that speaks HTTPS, or
        the reverse: trying again cannot help."""
        is_mismatch = isinstance(exc, PeerLost | NoTLS)
        if is_mismatch and not (self._has_answered or self.address.has_alternatives):
            check_scheme(self.address.link)

    def _reopen(self) -> None:
        self._client.close()
        self._client = self.address.open_client()

    def _pause(self, exc: _Retryable, failures: int) -> None:
        """Wait, then try the next address; raise ``exc`` if waiting cannot help."""
        if isinstance(exc, PeerUntrusted) and not self.address.has_alternatives:
            raise exc
        asked_s = exc.pause_s if isinstance(exc, TryLater) else 0.0
        wait_s = max(asked_s, backoff_s(failures, random.random()))
        self._observer.waiting(exc.text, wait_s)
        left_s = self.leave_at_s - time.monotonic()
        if left_s <= 0 or self._stopped.wait(min(wait_s, left_s)):
            raise exc
        with self._lock:
            if self.address.try_next():
                self._reopen()
                self._observer.noted(f"the server is now at {self.address.link.url}")

    def _count(self, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent_bytes += sent
            self.received_bytes += received


def _checked(response: Response) -> Response:
    """Return the response if the caller can act on it, else raise."""
    status = response.status
    if status < 300 or status == 304:
        return response
    if status in (408, 429) or status >= 500:
        raise _try_later(response.headers, f"{status}: {response.message()}")
    if status < 400 or response.refusal() is None:
        text = f"{status}, but not from Ringleader; is the tunnel up?"
        raise _try_later(response.headers, text)
    if status in _HANDLED_BY_CALLER:
        return response
    raise PeerRefused(SERVER, response.message())


def _try_later(headers: httpx2.Headers, text: str) -> TryLater:
    error = TryLater(SERVER, text)
    asked = headers.get("Retry-After", "")
    if asked.isascii() and asked.isdigit():  # it may also be a date
        error.pause_s = min(float(asked), 10 * _LONGEST_PAUSE_S)
    return error
