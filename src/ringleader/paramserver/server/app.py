"""The server's addresses; docs/internet-protocol.md says what each one means."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ringleader.errors import RingleaderError
from ringleader.identity.cluster_secret import clean_name
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.openapi import DESCRIPTION
from ringleader.paramserver.server import request_parsing, status_page
from ringleader.paramserver.server.admission import AdmissionResult
from ringleader.paramserver.server.auth import Authenticator
from ringleader.paramserver.server.pin_pairing import PinPairings
from ringleader.paramserver.server.request_parsing import (
    SOON,
    locked,
    malformed,
    refusal,
)
from ringleader.paramserver.server.status import status_of
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.server.update_endpoint import UpdateEndpoint, stale

PIECE_BYTES = 256 << 10
"""Of weights, handed to the socket at once: larger ones keep others waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a worker is told when it joins."""

    task: str
    fingerprint: dict[str, str]
    batch_size: int
    seed: int = 0
    codec: str = "none"
    weights_codec: str = "none"


class App:
    """Answers requests about one training run; everything in the event loop."""

    def __init__(self, training: Training, terms: Terms) -> None:
        self.training = training
        self.terms = terms
        self.manifest = training.store.weights.manifest
        self._auth = Authenticator(training)
        self._pairings = PinPairings(training.admission, self._auth.limit_stranger)
        self.updates = UpdateEndpoint(training, self._auth, batch_size=terms.batch_size)

    def starlette(self) -> Starlette:
        """The application that uvicorn serves."""
        update = "/v1/updates/{version}/{shard}"
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/v1/status", self._status),
                Route("/v1/openapi.json", self._openapi),
                Route("/v1/pair", self._pairings.pair, methods=["POST"]),
                Route("/v1/join", self._join, methods=["POST"]),
                Route("/v1/leave", self._leave, methods=["POST"]),
                Route("/v1/work", self._work),
                Route("/v1/weights/{version}", self._weights),
                Route(update, self.updates.resume, methods=["HEAD"]),
                Route(update, self.updates.update, methods=["PUT"]),
            ],
            exception_handlers={
                HTTPException: _answer,
                ClientDisconnect: _nobody,
                RingleaderError: _broken,
            },
        )

    async def _page(self, request: Request) -> Response:
        self._auth.limit_stranger(request)
        return HTMLResponse(status_page.HTML, headers=status_page.HEADERS)

    async def _status(self, request: Request) -> Response:
        self._auth.limit_stranger(request)
        found = status_of(self.training, self.terms.task, time.monotonic())
        return JSONResponse(found, headers={"Cache-Control": "no-store"})

    async def _openapi(self, request: Request) -> Response:
        self._auth.limit_stranger(request)
        return JSONResponse(DESCRIPTION)

    async def _join(self, request: Request) -> Response:
        join = await request_parsing.read_join(request)
        admission = self.training.admission
        if not admission.is_join_code(
            join.code
        ):  # behind a tunnel all have one address
            self._auth.limit_stranger(request)
        match admission.admit(join.code, join.pin):
            case AdmissionResult.UNKNOWN:
                text = "this server does not know that code or PIN"
                raise refusal(401, "unknown", text)
            case AdmissionResult.LOCKED:
                raise locked()
            case AdmissionResult.ADMITTED:
                self._pairings.redeem(join.receipt, time.monotonic())
        self._compare(join.task)
        name = clean_name(join.name) or "somebody"
        device = clean_name(join.device) or "unknown"
        joined = await self.training.join(name, device, join.nonce)
        if joined is None:
            raise refusal(503, "full", "too many workers are here", headers=SOON)
        worker, token = joined
        return self._json({"worker": worker, "token": token, **self._terms()})

    def _compare(self, theirs: dict[str, str]) -> None:
        ours = self.terms.fingerprint
        parts = [
            {"part": part, "server": ours.get(part), "worker": theirs.get(part)}
            for part in sorted(ours.keys() | theirs.keys())
            if ours.get(part) != theirs.get(part)
        ]
        if parts:
            names = ", ".join(str(part["part"])[:64] for part in parts)
            text = f"the server trains another task: these parts differ: {names}"
            raise refusal(412, "task", text, differences=parts)

    def _terms(self) -> dict[str, Any]:
        scheduler, terms = self.training.scheduler, self.terms
        return {
            "version": scheduler.version,
            "rounds": scheduler.plan.rounds,
            "mode": scheduler.plan.mode,
            "shards": scheduler.shards,
            "steps": scheduler.plan.steps,
            "batch_size": terms.batch_size,
            "seed": terms.seed,
            "manifest": self.manifest.digest,
            "codecs": bodies.CODECS,
            "codec": terms.codec,
            "weights_codec": terms.weights_codec,
            "max_update_bytes": self.updates.max_bytes,
            "task": terms.task,
        }

    async def _leave(self, request: Request) -> Response:
        worker = self._auth.authenticate(request)
        self.updates.uploads.drop(worker)
        await self.training.leave(worker)
        return Response(status_code=204)

    async def _work(self, request: Request) -> Response:
        worker = self._auth.authenticate(request)
        wait_s = request_parsing.parse_wait(request)
        found = await self.training.wait_for_work(worker, wait_s)
        scheduler = self.training.scheduler
        if scheduler.is_finished:
            summary = self.training.summary()
            return self._json(
                {"kind": "finished", "version": scheduler.version, "summary": summary}
            )
        if found is None:
            return self._with_version(Response(status_code=204))
        return self._json(
            {
                "kind": "step",
                "version": found.version,
                "shard": found.shard,
                "shards": found.shards,
                "first_batch": found.first_batch,
                "steps": scheduler.plan.steps,
                "batch_size": self.terms.batch_size,
                "lr": scheduler.plan.rate_factor(found.version, found.shards),
            }
        )

    async def _weights(self, request: Request) -> Response:
        worker = self._auth.authenticate(request)
        wanted = request_parsing.number(request.path_params["version"], "the version")
        codec = request.query_params.get("codec", "none")
        if codec not in bodies.WEIGHTS_CODECS:
            raise malformed(f"codec is none of {', '.join(bodies.WEIGHTS_CODECS)}")
        scheduler = self.training.scheduler
        if scheduler.plan.is_bulk and wanted != scheduler.version:
            raise stale(scheduler.version)
        if request.headers.get("if-none-match") == _etag(scheduler.version, codec):
            self.training.scheduler.use_newest_weights(worker)
            return self._with_version(Response(status_code=304))
        version, body = await self.training.weights_body(codec)
        if scheduler.plan.is_bulk and wanted != version:
            raise stale(scheduler.version)
        self.training.scheduler.use_newest_weights(worker)
        return self._send(request, worker, body, (version, codec))

    def _send(
        self, request: Request, worker: str, body: memoryview, what: tuple[int, str]
    ) -> Response:
        """A body or, for those whose line broke, the rest of it."""
        etag = _etag(*what)
        begin = 0
        asked = request.headers.get("range", "")
        if request.headers.get("if-range") == etag and asked.startswith("bytes="):
            begin = request_parsing.number(
                asked[6:].removesuffix("-"), "Range", len(body)
            )
        headers = {
            "ETag": etag,
            "X-Version": str(what[0]),
            "Content-Length": str(len(body) - begin),
            "Accept-Ranges": "bytes",
        }
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
        return StreamingResponse(
            self._pieces(worker, body[begin:]),
            status_code=206 if begin else 200,
            headers=headers,
            media_type="application/octet-stream",
        )

    async def _pieces(self, worker: str, body: memoryview) -> AsyncIterator[memoryview]:
        sent = self.training.counts.sent
        for i in range(0, len(body), PIECE_BYTES):
            piece = body[i : i + PIECE_BYTES]
            sent[worker] = sent.get(worker, 0) + len(piece)
            self.training.scheduler.mark_seen(worker, time.monotonic())
            yield piece

    def _json(self, content: dict[str, Any]) -> Response:
        return self._with_version(JSONResponse(content))

    def _with_version(self, response: Response) -> Response:
        response.headers["X-Version"] = str(self.training.scheduler.version)
        return response


async def _answer(request: Request, exc: Exception) -> Response:
    """Refusals as JSON; starlette's own (404, 405) in the same form."""
    assert isinstance(exc, HTTPException)
    detail: object = exc.detail
    if not isinstance(detail, dict):
        detail = {"error": "nothing", "message": str(detail)}
    return JSONResponse(detail, exc.status_code, exc.headers)


async def _broken(request: Request, exc: Exception) -> Response:
    """The server is about to stop, and says there why; here it names no paths."""
    content = {"error": "stopping", "message": "the server cannot go on"}
    return JSONResponse(content, 503, SOON)


async def _nobody(request: Request, exc: Exception) -> Response:
    """The other side went away; nobody reads this."""
    return Response(status_code=499)


def _etag(version: int, codec: str) -> str:
    return f'"{version}-{codec}"'
