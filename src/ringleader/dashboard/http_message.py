"""HTTP/1.1 requests and responses of the dashboard, as bytes. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

MAX_HEAD_BYTES = 8 << 10
MAX_BODY_BYTES = 4 << 10
MAX_HEADERS = 64
GZIP_LEVEL = 1
"""Makes events four times smaller; higher levels block the event loop for longer."""
GZIP_FORMAT = 16
"""What zlib adds to the size of the window to mean gzip."""

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Names of machines and jobs are untrusted text. If one were ever shown unescaped, the
policy would keep it from running or loading anything."""


class BadRequest(Exception):
    """The client's mistake: the status to answer, and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request. Names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]

    @property
    def body_bytes(self) -> int:
        """Length of the body; raises ``BadRequest`` if it is wrong or too long."""
        if "transfer-encoding" in self.headers:
            raise BadRequest(411, "send the length of the body, not chunks")
        text = self.headers.get("content-length", "0")
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise BadRequest(400, "the length of the body is not a number")
        if int(text) > MAX_BODY_BYTES:
            raise BadRequest(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
        return int(text)

    @property
    def accepts_gzip(self) -> bool:
        """Whether the client reads compressed responses."""
        words = self.headers.get("accept-encoding", "").lower().split(",")
        return any(word.strip() == "gzip" for word in words)

    @property
    def key(self) -> str:
        """The session key that the page sends; empty if it sends none."""
        kind, _, key = self.headers.get("authorization", "").partition(" ")
        return key if kind == "Bearer" else ""


def parse_head(head: bytes) -> Request:
    """Parse a request up to its empty line; raises ``BadRequest``."""
    if not head.isascii():
        raise BadRequest(400, "the request holds characters that HTTP does not allow")
    first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(400, "not an HTTP request")
    if len(lines) > MAX_HEADERS:
        raise BadRequest(431, f"more than {MAX_HEADERS} headers")
    method, target, _ = parts
    path, _, query = target.partition("?")
    return Request(method, path, query, _parse_headers(lines))


def _parse_headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line:
            raise BadRequest(400, "a header is malformed")
        if name.lower() in headers:  # two lengths or two hosts: which one counts?
            raise BadRequest(400, f"header {name} occurs twice")
        headers[name.lower()] = value.strip()
    return headers


def check_source(request: Request, origins: frozenset[str]) -> None:
    """Raise ``BadRequest`` unless the request is for us and from our own page.

    ``origins`` are ours, as ``http://127.0.0.1:4711``. Another name in Host means that
    a web page has pointed its own name at us (DNS rebinding). A POST of another page
    has that page's Origin (CSRF).
    """
    hosts = {origin.partition("://")[2] for origin in origins}
    if request.headers.get("host", "") not in hosts:
        raise BadRequest(403, "this address is not the dashboard's; use its link")
    origin = request.headers.get("origin")
    if origin is not None and origin not in origins:
        raise BadRequest(403, "the request comes from another web page")
    if request.method == "POST" and origin is None:
        raise BadRequest(403, "the request does not say which page sent it")
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        is_navigation = request.headers.get("sec-fetch-mode") == "navigate"
        if request.method != "GET" or not is_navigation:
            raise BadRequest(403, "the request comes from another web page")


def response_head(
    status: int, content_type: str, length: int | None, *, is_gzip: bool = False
) -> bytes:
    """Return the head of a response. Without a length it ends with the connection."""
    headers = {"Content-Type": content_type, **SECURITY_HEADERS, "Connection": "close"}
    if is_gzip:
        headers["Content-Encoding"] = "gzip"
    if length is not None:
        headers["Content-Length"] = str(length)
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def response(status: int, content_type: str, body: bytes) -> bytes:
    """Return a whole response."""
    return response_head(status, content_type, len(body)) + body


def json_response(status: int, content: object) -> bytes:
    """Return a whole response of JSON."""
    return response(status, "application/json", msgspec.json.encode(content))


def event(name: str, content: object) -> bytes:
    """Return one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(content))


class EventStream:
    """Encodes a stream of events, compressed if the client reads that.

    A secret would not belong into a compressed stream with text of others, as its
    length could be guessed; events hold none.
    """

    def __init__(self, *, is_gzip: bool) -> None:
        self.is_gzip = is_gzip
        self._gzip = zlib.compressobj(GZIP_LEVEL, wbits=zlib.MAX_WBITS | GZIP_FORMAT)

    @property
    def head(self) -> bytes:
        """The head of the response."""
        kind = "text/event-stream"
        return response_head(200, kind, None, is_gzip=self.is_gzip)

    def encode(self, data: bytes) -> bytes:
        """Return bytes from which the client can decode all data so far."""
        if not self.is_gzip:
            return data
        return self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
