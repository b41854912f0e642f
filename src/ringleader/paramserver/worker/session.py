"""Requests to the server that are repeated until it answers, however long that takes.

Every request of the protocol may be repeated, so a broken line, a restarted server and
an answer that got lost are all the same: ask again, after a pause that grows.
"""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

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
from ringleader.paramserver.worker import server_messages
from ringleader.paramserver.worker.http_errors import (
    UnverifiedCertificate,
    translate_errors,
)
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.response_body import ResponseBody
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.server_messages import Json

T = TypeVar("T")
_Trouble = PeerUnreachable | PeerLost | PeerUntrusted
"""What may be over when a request is repeated."""

SERVER = server_messages.SERVER
LIMIT_BYTES = 256 << 10
"""Of an answer in JSON: a summary with all workers fits many times."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_SLOWEST_PER_S = 2048
"""Bytes; a line below that is as good as broken."""
_ANSWER_S = 60.0
_OURS = {401, 409, 412, 416, 422}
"""Answers that the caller knows what to do with."""
_WORDS = {"malformed", "unknown", "quarantined", "locked", "nothing", "stale"}
_WORDS |= {"finished", "task", "large", "offset", "rubbish"}
"""What a refusal of ours is called; tunnels and proxies have other words."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be repeated."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    timeout_s: float | None = None
    """Of each wait, where it shall be shorter than usual."""


@dataclass(frozen=True, slots=True)
class Response:
    """What the server said, once it said something sensible."""

    status: int
    headers: httpx2.Headers
    body: bytes

    def json(self) -> Json:
        """The JSON object in its body."""
        return server_messages.parse(self.body)

    def error(self) -> str:
        """What the server calls its refusal; empty if it is none of its words."""
        try:
            return server_messages.text_of(self.json(), "error")
        except ProtocolError:
            return ""

    def message(self) -> str:
        """What it says for people."""
        try:
            return server_messages.text_of(self.json(), "message")
        except ProtocolError:
            return f"it answered {self.status}"


class TryLater(PeerUnreachable):
    """The server cannot do it at this moment; ``pause_s`` is how long it asked for."""

    pause_s: float = 0.0


def pause_s(failures: int, chance: float) -> float:
    """How long to wait after so many failures in a row; ``chance`` is from 0 to 1.

    Doubles up to half a minute. The chance keeps workers from coming back all at once.
    """
    whole = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
    return whole * (0.5 + 0.5 * chance)


class Session:
    """The way to one server. Several threads may ask at once."""

    def __init__(
        self,
        address: ServerAddress,
        observer: Observer,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.token: Secret[str] | None = None
        self.pair_by_pin: Callable[[], None] | None = None
        """Turns a bare address that nobody vouches for into a whole link."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._address = address
        self._observer = observer
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._client = address.open_client(context)

    @property
    def address(self) -> ServerAddress:
        """Where the server is."""
        return self._address

    def send(self, request: Request) -> Response:
        """The server's answer, sooner or later."""
        return self.retry(lambda: self.send_once(request))

    def retry(self, call: Callable[[], T], arrived: Callable[[], int] = lambda: 0) -> T:
        """Repeat ``call`` until it fails no more for want of a server.

        As long as ``arrived`` grows from try to try, the pauses stay short.
        """
        failures, before = 0, 0
        while True:
            try:
                found = call()
            except (PeerUnreachable, PeerLost, PeerUntrusted) as exc:
                trouble = self._after_pairing(exc)
                if trouble is None:
                    continue
                failures = 1 if arrived() > before else failures + 1
                before = arrived()
                self._pause(trouble, failures)
            else:
                if failures:
                    self._observer.reconnected()
                return found

    def send_once(self, request: Request, into: ResponseBody | None = None) -> Response:
        """Ask once. What is asked for goes to ``into``, where a broken line leaves it.

        PeerUnreachable or PeerLost: try again; PeerRefused: never.
        """
        headers = dict(request.headers)
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token.reveal()}"
        url, client = self._address.link.url, self._client
        timeout = request.timeout_s or client.timeout
        with (
            translate_errors(url),
            client.stream(
                request.method,
                url + request.path,
                headers=headers,
                content=bytes(request.body),
                timeout=timeout,
            ) as response,
        ):
            self._count(sent=len(request.body))
            has_it = into is not None and response.status_code in (200, 206)
            body = into if into is not None and has_it else ResponseBody(LIMIT_BYTES)
            self._read(response, body)
        data = b"" if has_it else bytes(body.data)
        answer = Response(response.status_code, response.headers, data)
        # A refusal of HEAD has no words; what it is about will be refused with some.
        is_bare = request.method == "HEAD" and 400 <= answer.status < 500
        return answer if is_bare else _checked(answer)

    def stop(self) -> None:
        """Let no pause go on; requests under way end by their deadlines."""
        self._stopped.set()

    def close(self) -> None:
        """Drop all connections."""
        self.stop()
        self._client.close()

    def _read(self, response: httpx2.Response, body: ResponseBody) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise PeerLost(SERVER, "something on the way compressed the answer")
        if response.headers.get("Content-Type", "").startswith("text/html"):
            text = f"{response.status_code}: a web page answered; is the tunnel up?"
            raise _not_now(response.headers, text)
        deadline = Deadline.after(_ANSWER_S + body.limit_bytes / _SLOWEST_PER_S)
        body.begin(response.status_code, response.headers)
        for block in response.iter_raw():
            self._count(received=len(block))
            body.add(block)
            if deadline.is_over():
                raise PeerLost(SERVER, f"an answer took over {deadline.after_s:.0f} s")

    def _after_pairing(self, exc: _Trouble) -> _Trouble | None:
        """None if the link is a better one now; raises what no PIN can mend."""
        can_mend = isinstance(exc, UnverifiedCertificate) and self._address.link.is_bare
        if self.pair_by_pin is None or not can_mend:
            return exc
        try:
            self.pair_by_pin()
        except (PeerUnreachable, PeerLost) as later:
            return later
        with self._lock:
            self._reopen()
        return None

    def _reopen(self) -> None:
        self._client.close()
        self._client = self._address.open_client()

    def _pause(self, exc: _Trouble, n: int) -> None:
        """Wait, and look whether the server moved; raise what waiting cannot mend."""
        if isinstance(exc, PeerUntrusted) and not self._address.has_alternatives:
            raise exc
        asked_s = exc.pause_s if isinstance(exc, TryLater) else 0.0
        wait_s = max(asked_s, pause_s(n, random.random()))  # only spreads workers
        self._observer.waiting(exc.text, wait_s)
        if self._stopped.wait(wait_s):
            raise exc
        with self._lock:
            if self._address.try_next():
                self._reopen()
                self._observer.noted(f"the server is now at {self._address.link.url}")

    def _count(self, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent_bytes += sent
            self.received_bytes += received


def _checked(answer: Response) -> Response:
    """The answer, if it is one the caller can act on."""
    status = answer.status
    if status < 300 or status == 304:
        return answer
    if status in (408, 429) or status >= 500:
        raise _not_now(answer.headers, f"{status}: {answer.message()}")
    if status < 400 or answer.error() not in _WORDS:
        text = f"{status}, but not from Ringleader; is the tunnel up?"
        raise _not_now(answer.headers, text)
    if status in _OURS:
        return answer
    raise PeerRefused(SERVER, answer.message())


def _not_now(headers: httpx2.Headers, text: str) -> TryLater:
    error = TryLater(SERVER, text)
    asked = headers.get("Retry-After", "")
    if asked.isascii() and asked.isdigit():  # it may also be a date
        longest_s = 10 * _LONGEST_PAUSE_S
        error.pause_s = min(float(asked), longest_s)
    return error
