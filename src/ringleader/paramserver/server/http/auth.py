"""Authenticates requests by their token, and limits their rate."""

from __future__ import annotations

import time

from starlette.requests import Request

from ringleader.paramserver.server.http.connection_limits import mark_worker
from ringleader.paramserver.server.http.rate_limit import RateLimiter
from ringleader.paramserver.server.http.responses import CLOSE, Refusal, refusal
from ringleader.paramserver.server.training import Training


class Authenticator:
    """Checks who sends a request. Every endpoint calls it first."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._strangers = RateLimiter(per_s=20.0, burst=60.0)
        # A step takes three requests: small models on a LAN make a hundred in a second.
        self._workers = RateLimiter(per_s=500.0, burst=1000.0)

    def authenticate(self, request: Request) -> str:
        """Return the id of the worker whose token the request carries.

        Raises a refusal for an unknown token, a quarantined worker, or too many
        requests.
        """
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        worker = self.training.admission.worker_of(token) if kind == "Bearer" else None
        if worker is None:
            self.limit_stranger(request)
            text = "this server does not know the token: join first"
            raise refusal(401, "unknown", text, headers=CLOSE)
        wait_s = self._workers.wait_s(worker, time.monotonic())
        if wait_s:
            raise _too_many_requests(wait_s)
        if self.training.scheduler.workers[worker].is_quarantined:
            text = "quarantined: this worker's updates failed checks again and again"
            raise refusal(403, "quarantined", text, headers=CLOSE)
        self.training.scheduler.mark_seen(worker, time.monotonic())
        mark_worker(request, worker)
        return worker

    def limit_stranger(self, request: Request) -> None:
        """Refuse a request without a token if its address has sent too many."""
        host = request.client.host if request.client else ""
        if wait_s := self._strangers.wait_s(host, time.monotonic()):
            raise _too_many_requests(wait_s)


def _too_many_requests(wait_s: int) -> Refusal:
    text = f"too many requests; wait {wait_s} s"
    return refusal(429, "busy", text, headers={"Retry-After": str(wait_s)})
