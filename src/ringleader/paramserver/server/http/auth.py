"""Authenticates requests by their token, and limits their rate."""

from __future__ import annotations

import time

from starlette.requests import Request

from ringleader.paramserver.protocol.join_link import JOIN_SCHEME
from ringleader.paramserver.server.admission import AdmissionResult
from ringleader.paramserver.server.http.client_network import network_of
from ringleader.paramserver.server.http.connection_limits import (
    mark_worker,
    unmark_worker,
)
from ringleader.paramserver.server.http.responses import (
    CLOSE,
    Refusal,
    locked,
    refusal,
)
from ringleader.paramserver.server.training import Training
from ringleader.rate_limit import RateLimiter


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
        kind, credential = _credential(request)
        worker = (
            self.training.admission.worker_of(credential) if kind == "Bearer" else None
        )
        if worker is None:
            # Not limited: a token cannot be guessed, and a worker whose token ended
            # must learn it, also if strangers use up the rate of its address.
            text = "this server does not know the token: join first"
            raise refusal(401, "unknown", text, headers=CLOSE)
        wait_s = self._workers.wait_s(worker, time.monotonic())
        if wait_s:
            raise _too_many_requests(wait_s)
        if self.training.scheduler.workers[worker].is_quarantined:
            unmark_worker(request, worker)
            text = "quarantined: this worker's updates failed checks again and again"
            raise refusal(403, "quarantined", text, headers=CLOSE)
        self.training.scheduler.mark_seen(worker, time.monotonic())
        mark_worker(request, worker)
        return worker

    def authenticate_reader(self, request: Request) -> None:
        """Accept whoever may join: by token, by the code of the join link or by PIN.

        Raises a refusal otherwise.
        """
        kind, credential = _credential(request)
        admission = self.training.admission
        if kind == "Bearer" and admission.worker_of(credential) is not None:
            return
        code = credential if kind == JOIN_SCHEME else None
        if not admission.is_join_code(code):
            self.limit_stranger(request)
        match admission.admit(code, request.headers.get("x-auth-pin")):
            case AdmissionResult.UNKNOWN:
                text = "this server does not know that code or PIN"
                raise refusal(401, "unknown", text)
            case AdmissionResult.LOCKED:
                raise locked()

    def limit_stranger(self, request: Request) -> None:
        """Refuse a request if its address has sent too many as a stranger.

        A request with the code of the join link or a token is not a stranger's: behind
        a tunnel, all have one address.
        """
        kind, credential = _credential(request)
        admission = self.training.admission
        if kind == JOIN_SCHEME and admission.is_join_code(credential):
            return
        if kind == "Bearer" and admission.worker_of(credential) is not None:
            return
        host = network_of(request.client.host) if request.client else ""
        if wait_s := self._strangers.wait_s(host, time.monotonic()):
            raise _too_many_requests(wait_s)


def _credential(request: Request) -> tuple[str, str]:
    """Return the scheme and the value of the Authorization header, or empty texts."""
    kind, _, credential = request.headers.get("authorization", "").partition(" ")
    return kind, credential


def _too_many_requests(wait_s: int) -> Refusal:
    text = f"too many requests; wait {wait_s} s"
    return refusal(429, "busy", text, headers={"Retry-After": str(wait_s)})
