"""The HTTP endpoints of the server, except those for updates and pairing.

docs/internet-protocol.md describes what each of them means.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ringleader.errors import RingleaderError
from ringleader.identity.cluster_secret import clean_name
from ringleader.paramserver.protocol import bodies, compressed_body
from ringleader.paramserver.protocol.messages import (
    Assignment,
    Difference,
    ErrorAnswer,
    Finished,
    JoinAnswer,
)
from ringleader.paramserver.protocol.openapi import DESCRIPTION
from ringleader.paramserver.server.admission import AdmissionResult
from ringleader.paramserver.server.http import request_parsing, status_page
from ringleader.paramserver.server.http.auth import Authenticator
from ringleader.paramserver.server.http.connection_limits import (
    mark_worker,
    unmark_worker,
)
from ringleader.paramserver.server.http.data_endpoint import DataEndpoint
from ringleader.paramserver.server.http.pin_pairing import PinPairings
from ringleader.paramserver.server.http.responses import (
    SOON,
    Refusal,
    json_response,
    locked,
    malformed,
    refusal,
    stale,
)
from ringleader.paramserver.server.http.server_metrics import ServerMetrics
from ringleader.paramserver.server.http.status import build_status
from ringleader.paramserver.server.http.update_endpoint import UpdateEndpoint
from ringleader.paramserver.server.quarantined_sources import source_of
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.tasks.task import DataFiles

PIECE_BYTES = 256 << 10
"""Bytes of weights that are handed to the socket at once. Larger pieces keep the
event loop from other requests for longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run that workers learn when they join."""

    task: str
    fingerprint: dict[str, str]
    batch_size: int
    seed: int = 0
    codec: str = "none"
    weights_codec: str = "none"
    data: DataFiles | None = None
    """Files that workers may get from this server."""


class App:
    """Handles the requests to one training run, all in the event loop."""

    def __init__(self, training: Training, settings: RunSettings) -> None:
        self.training = training
        self.settings = settings
        self.manifest = training.store.weights.manifest
        self._auth = Authenticator(training)
        self._pairings = PinPairings(training.admission, self._auth.limit_stranger)
        self.updates = UpdateEndpoint(
            training, self._auth, batch_size=settings.batch_size
        )
        self.metrics = ServerMetrics(training, self._auth)
        self.updates.on_verdict = self.metrics.count_verdict
        self._data = DataEndpoint(self._auth, settings.data)

    def starlette(self) -> Starlette:
        """Build the ASGI application that uvicorn serves."""
        update = "/v1/updates/{version}/{shard}"
        return Starlette(
            routes=[
                *(Route(path, self._page) for path in status_page.PATHS),
                Route("/metrics", self.metrics.page),
                Route("/v1/status", self._status),
                Route("/v1/openapi.json", self._openapi),
                Route("/v1/pair", self._pairings.pair, methods=["POST"]),
                Route("/v1/join", self._join, methods=["POST"]),
                Route("/v1/leave", self._leave, methods=["POST"]),
                Route("/v1/work", self._work),
                Route("/v1/weights/{version}", self._weights),
                Route("/v1/data", self._data.listing),
                Route("/v1/data/{chunk}", self._data.chunk),
                Route(update, self.updates.resume, methods=["HEAD"]),
                Route(update, self.updates.update, methods=["PUT"]),
            ],
            exception_handlers={
                HTTPException: _refused,
                ClientDisconnect: _disconnected,
                RingleaderError: _failed,
            },
        )

    async def _page(self, request: Request) -> Response:
        self._auth.limit_stranger(request)
        return status_page.respond(request.url.path)

    async def _status(self, request: Request) -> Response:
        self._auth.limit_stranger(request)
        status = build_status(self.training, self.settings.task, time.monotonic())
        return json_response(status, headers={"Cache-Control": "no-store"})

    async def _openapi(self, request: Request) -> Response:
        self._auth.limit_stranger(request)
        return JSONResponse(DESCRIPTION)

    async def _join(self, request: Request) -> Response:
        join = await request_parsing.read_join(request)
        admission = self.training.admission
        if not admission.is_join_code(join.code):  # a tunnel gives all one address
            self._auth.limit_stranger(request)
        match admission.admit(join.code, join.pin):
            case AdmissionResult.UNKNOWN:
                text = "this server does not know that code or PIN"
                raise refusal(401, "unknown", text)
            case AdmissionResult.LOCKED:
                raise locked()
            case AdmissionResult.ADMITTED:
                self._pairings.redeem(join.receipt, time.monotonic())
        self._compare_fingerprints(join.task)
        name = clean_name(join.name) or "somebody"
        device = clean_name(join.device) or "unknown"
        source = source_of(request.client.host if request.client else "")
        if wait_s := self.training.join_wait_s(join.nonce, source):
            text = f"a worker from your address was quarantined; wait {wait_s} s"
            raise refusal(429, "busy", text, headers={"Retry-After": str(wait_s)})
        joined = await self.training.join(name, device, join.nonce, source)
        if joined is None:
            text = "the server has as many workers as it can take"
            raise refusal(503, "full", text, headers=SOON)
        mark_worker(request, joined[0])
        return self._json(self._join_answer(*joined))

    def _compare_fingerprints(self, theirs: dict[str, str]) -> None:
        ours = self.settings.fingerprint
        differences = tuple(
            Difference(part=part, server=ours.get(part), worker=theirs.get(part))
            for part in sorted(ours.keys() | theirs.keys())
            if ours.get(part) != theirs.get(part)
        )
        if differences:
            names = ", ".join(difference.part for difference in differences)
            text = f"the server trains another task: these parts differ: {names}"
            raise refusal(412, "task", text, differences=differences)

    def _join_answer(self, worker: str, token: str) -> JoinAnswer:
        scheduler, settings = self.training.scheduler, self.settings
        return JoinAnswer(
            worker=worker,
            token=token,
            version=scheduler.version,
            rounds=scheduler.plan.rounds,
            mode=scheduler.plan.mode,
            shards=scheduler.shards,
            steps=scheduler.plan.most_steps,
            batch_size=settings.batch_size,
            seed=settings.seed,
            manifest=self.manifest.digest,
            codecs=bodies.CODECS,
            codec=settings.codec,
            weights_codec=settings.weights_codec,
            max_update_bytes=self.updates.max_bytes,
            task=settings.task,
        )

    async def _leave(self, request: Request) -> Response:
        worker = self._auth.authenticate(request)
        self.updates.uploads.drop(worker)
        await self.training.leave(worker)
        unmark_worker(request, worker)
        return Response(status_code=204)

    async def _work(self, request: Request) -> Response:
        worker = self._auth.authenticate(request)
        wait_s = request_parsing.parse_wait(request)
        lease = await self.training.wait_for_work(worker, wait_s)
        scheduler = self.training.scheduler
        if scheduler.is_finished:
            summary = self.training.summary()
            return self._json(Finished(version=scheduler.version, summary=summary))
        if lease is None:
            return self._with_version(Response(status_code=204))
        return self._json(
            Assignment(
                version=lease.version,
                shard=lease.shard,
                shards=lease.shards,
                first_batch=lease.first_batch,
                steps=lease.steps,
                batch_size=self.settings.batch_size,
                lr=scheduler.plan.rate_factor(lease.version, lease.shards),
            )
        )

    async def _weights(self, request: Request) -> Response:
        worker = self._auth.authenticate(request)
        text = request.path_params["version"]
        wanted = request_parsing.parse_number(text, "the version")
        codec = request.query_params.get("codec", "none")
        if codec not in bodies.WEIGHTS_CODECS:
            raise malformed(f"codec is none of {', '.join(bodies.WEIGHTS_CODECS)}")
        frame = request.query_params.get("frame", "zstd")
        if frame not in compressed_body.FRAMES:
            raise malformed(f"frame is none of {', '.join(compressed_body.FRAMES)}")
        kind = codec if frame == "zstd" else f"{codec}-{frame}"
        scheduler = self.training.scheduler
        if scheduler.plan.is_bulk and wanted != scheduler.version:
            raise stale(scheduler.version)
        if request.headers.get("if-none-match") == _etag(scheduler.version, kind):
            scheduler.use_newest_weights(worker)
            return self._with_version(Response(status_code=304))
        version, body = await self.training.weights_body(codec, frame)
        if scheduler.plan.is_bulk and wanted != version:
            raise stale(scheduler.version)
        scheduler.use_newest_weights(worker)
        return self._send_weights(request, worker, body, (version, kind))

    def _send_weights(
        self, request: Request, worker: str, body: memoryview, what: tuple[int, str]
    ) -> Response:
        """Send a body of weights, or the rest of it if the request asks for a range."""
        etag = _etag(*what)
        begin = 0
        asked = request.headers.get("range", "")
        if request.headers.get("if-range") == etag and asked.startswith("bytes="):
            first = asked[6:].removesuffix("-")
            begin = request_parsing.parse_number(first, "Range", len(body))
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
        sent = self.training.traffic.sent
        for i in range(0, len(body), PIECE_BYTES):
            piece = body[i : i + PIECE_BYTES]
            sent[worker] = sent.get(worker, 0) + len(piece)
            self.training.scheduler.mark_seen(worker, time.monotonic())
            yield piece

    def _json(self, message: msgspec.Struct) -> Response:
        return self._with_version(json_response(message))

    def _with_version(self, response: Response) -> Response:
        response.headers["X-Version"] = str(self.training.scheduler.version)
        return response


async def _refused(request: Request, exc: Exception) -> Response:
    """Respond with a refusal; starlette's own errors (404, 405) get the same form."""
    assert isinstance(exc, HTTPException)
    if isinstance(exc, Refusal):
        return exc.response()
    answer = ErrorAnswer(error="nothing", message=str(exc.detail))
    return json_response(answer, exc.status_code, exc.headers)


async def _failed(request: Request, exc: Exception) -> Response:
    """Respond while the server stops. The reason is printed there, not sent: it may
    name paths."""
    answer = ErrorAnswer(error="stopping", message="the server cannot go on")
    return json_response(answer, 503, SOON)


async def _disconnected(request: Request, exc: Exception) -> Response:
    """End a request whose client is gone; the response is sent to nobody."""
    return Response(status_code=499)


def _etag(version: int, kind: str) -> str:
    return f'"{version}-{kind}"'
