"""Limits that every request must keep before the application handles it.

uvicorn limits neither the number of headers, nor the length of bodies, nor how slowly
they arrive. docs/internet-protocol.md lists the limits.
"""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringleader.paramserver.server.http.responses import CLOSE, Refusal, refusal

MAX_HEAD_BYTES = 16 << 10
MAX_HEADERS = 64
GRACE_S = 15.0
"""Seconds during which a body may be arbitrarily slow, and the longest pause in it."""
MIN_BYTES_PER_S = 16 << 10
"""Average speed that a body must have after that: the worst home connections do."""

_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class RequestLimits:
    """ASGI middleware that enforces the limits and adds security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        target = len(scope["raw_path"]) + len(scope["query_string"])
        refused = _check_head(scope["headers"], target)
        if refused is not None:
            await refused.response()(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = message.get("headers", [])
                message["headers"] = [*found, *_SECURITY_HEADERS]
            await send(message)

        await self._app(scope, _TimedBody(receive).receive, send_with_headers)


class _TimedBody:
    """Measures how fast a body arrives, from when the application first reads it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._began_s: float | None = None
        self._num_bytes = 0
        self._has_ended = False

    async def receive(self) -> Message:
        """Return the next piece; raise a refusal (408) if it takes too long."""
        if self._has_ended:  # the application now waits for the client to disconnect
            return await self._receive()
        if self._began_s is None:
            self._began_s = time.monotonic()
        try:
            async with asyncio.timeout(GRACE_S):
                message = await self._receive()
        except TimeoutError:
            raise _too_slow() from None
        self._num_bytes += len(message.get("body", b""))
        self._has_ended = not message.get("more_body", False)
        took_s = time.monotonic() - self._began_s - GRACE_S
        if not self._has_ended and self._num_bytes < took_s * MIN_BYTES_PER_S:
            raise _too_slow()
        return message


def _too_slow() -> Refusal:
    text = "the body arrived too slowly: send the rest again"
    return refusal(408, "slow", text, headers=CLOSE)


def _check_head(headers: list[tuple[bytes, bytes]], target: int) -> Refusal | None:
    size = target + sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
        text = f"more than {MAX_HEADERS} headers, or {MAX_HEAD_BYTES} bytes of them"
        return refusal(431, "malformed", text, headers=CLOSE)
    names = [name for name, _ in headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        text = "both Content-Length and Transfer-Encoding"
        return refusal(400, "malformed", text, headers=CLOSE)
    if names.count(b"authorization") > 1:
        text = "more than one Authorization header"
        return refusal(400, "malformed", text, headers=CLOSE)
    return None
