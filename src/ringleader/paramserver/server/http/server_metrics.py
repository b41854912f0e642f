"""ServerMetrics: what the server counts, and ``GET /metrics`` for Prometheus.

Like the status, the page contains no token, code, address or path, and no names.
"""

from __future__ import annotations

import re
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringleader.metrics import catalog
from ringleader.metrics.exposition import CONTENT_TYPE, write_page
from ringleader.metrics.registry import Registry, Tally
from ringleader.paramserver.server.http.auth import Authenticator
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.server.update_verdict import Verdict

ENDPOINTS = frozenset(
    {"status", "pair", "join", "leave", "work", "weights", "data", "updates"}
)
"""Endpoints below /v1 that are counted by name. All others, which strangers may invent,
are "other"."""
_PATH = re.compile(r"/v1/([a-z]+)(?:/.*)?")


class ServerMetrics:
    """The metrics of one server. Lives on its event loop."""

    def __init__(self, training: Training, auth: Authenticator) -> None:
        self.registry = Registry()
        self.registry.add_source(self._collect)
        self._training = training
        self._auth = auth

    def count_verdict(self, verdict: Verdict) -> None:
        """Count the answer to an update."""
        self.registry.add(catalog.SERVER_UPDATES, 1, verdict.name.lower())

    async def page(self, request: Request) -> Response:
        """Handle GET /metrics."""
        self._auth.limit_stranger(request)
        headers = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"}
        return Response(write_page(self.registry.snapshot()), headers=headers)

    def _collect(self, tally: Tally) -> None:
        scheduler = self._training.scheduler
        connected = scheduler.workers.connected(time.monotonic())
        tally.put(catalog.SERVER_WORKERS, len(connected))
        tally.put(catalog.SERVER_VERSION, scheduler.version)


class RequestCounter:
    """ASGI middleware that counts requests, their time and the bytes of bodies."""

    def __init__(self, app: ASGIApp, registry: Registry) -> None:
        self._app = app
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        endpoint = endpoint_of(scope["path"])
        status, sent, received = 0, 0, 0

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, sent
            status = message.get("status", status)
            await send(message)
            sent += len(message.get("body", b""))

        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            registry, shown = self._registry, f"{status // 100}xx" if status else "none"
            registry.add(catalog.SERVER_REQUESTS, 1, endpoint, shown)
            registry.add(catalog.SERVER_SENT_BYTES, sent, endpoint)
            registry.add(catalog.SERVER_RECEIVED_BYTES, received, endpoint)
            seconds = time.monotonic() - began_s
            registry.observe(catalog.SERVER_SECONDS, seconds, endpoint)


def endpoint_of(path: str) -> str:
    """The name under which requests for ``path`` are counted."""
    found = _PATH.fullmatch(path)
    return found[1] if found and found[1] in ENDPOINTS else "other"
