"""What every request must keep to before the application sees it.

uvicorn itself has no limit on the number of headers, on bodies, or on how slowly they
come (docs/internet-protocol.md lists ours).
"""

from __future__ import annotations

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringleader.paramserver.server.request_parsing import CLOSE, refusal

MAX_HEAD_BYTES = 16 << 10
MAX_HEADERS = 64
GRACE_S = 15.0
"""A body may be as slow as it likes for so long, and pause for so long."""
MIN_BYTES_PER_S = 16 << 10
"""... then it must come at this pace: the worst home connections do."""

_EXTRA = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class RequestLimits:
    """Wraps the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        target = len(scope["raw_path"]) + len(scope["query_string"])
        refused = _judge(scope["headers"], target)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_EXTRA]
            await send(message)

        await self._app(scope, _Body(receive).receive, sent)


class _Body:
    """Watches how fast a body comes, from when the application wants it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._began_s: float | None = None
        self._num_bytes = 0
        self._has_ended = False

    async def receive(self) -> Message:
        """The next piece; the answer is 408 if it takes too long."""
        if self._has_ended:  # now it waits for the other side to go away
            return await self._receive()
        if self._began_s is None:
            self._began_s = time.monotonic()
        try:
            async with asyncio.timeout(GRACE_S):
                message = await self._receive()
        except TimeoutError:
            raise _slow() from None
        self._num_bytes += len(message.get("body", b""))
        self._has_ended = not message.get("more_body", False)
        took_s = time.monotonic() - self._began_s - GRACE_S
        if not self._has_ended and self._num_bytes < took_s * MIN_BYTES_PER_S:
            raise _slow()
        return message


def _slow() -> HTTPException:
    text = "the body came too slowly: send the rest again"
    return refusal(408, "slow", text, headers=CLOSE)


def _judge(headers: list[tuple[bytes, bytes]], target: int) -> JSONResponse | None:
    size = target + sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
        return _refuse(
            431, "malformed", "a head that is too long, or has too many lines"
        )
    names = [name for name, _ in headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        return _refuse(400, "malformed", "Content-Length and Transfer-Encoding")
    if names.count(b"authorization") > 1:
        return _refuse(400, "malformed", "more than one Authorization")
    return None


def _refuse(status: int, error: str, message: str) -> JSONResponse:
    content = {"error": error, "message": message}
    return JSONResponse(content, status, headers={"Connection": "close"})
