"""How updates come in: refused early, resumed when the line broke, counted once."""

from __future__ import annotations

import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.server import request_parsing
from ringleader.paramserver.server.auth import Authenticator
from ringleader.paramserver.server.request_parsing import (
    CLOSE,
    SOON,
    malformed,
    refusal,
)
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.paramserver.server.update_verdict import Verdict
from ringleader.paramserver.server.upload_buffers import UploadBuffer, UploadBuffers

_UPLOADS = 8
_MIN_UPLOAD_BYTES = 256 << 20
"""Bodies under way may take this much memory, or eight of the topk_indices."""


class UpdateEndpoint:
    """Answers requests about updates."""

    def __init__(
        self, training: Training, auth: Authenticator, *, batch_size: int
    ) -> None:
        self.training = training
        self._max_samples = batch_size * training.scheduler.plan.steps
        manifest = training.store.weights.manifest
        self.max_bytes = bodies.max_update_bytes(manifest)
        self.uploads = UploadBuffers(max(_UPLOADS * self.max_bytes, _MIN_UPLOAD_BYTES))
        self._auth = auth

    def sweep(self) -> None:
        """Let go of uploads that can no longer count."""
        verdict = self.training.scheduler.verdict
        self.uploads.sweep(lambda worker, key: verdict(worker, key) is Verdict.ACCEPT)

    async def resume(self, request: Request) -> Response:
        worker = self._auth.authenticate(request)
        key = request_parsing.parse_update_key(request)
        self._refuse_early(worker, key)
        kept = self.uploads.resume(worker, key)
        offset = str(kept.filled if kept else 0)
        return self._with_version(
            Response(status_code=204, headers={"Upload-Offset": offset})
        )

    async def update(self, request: Request) -> Response:
        worker = self._auth.authenticate(request)
        update_headers = request_parsing.parse_update_headers(
            request, self._max_samples
        )
        upload = self._upload(request, worker, update_headers.key)
        if upload is None:
            return self._outcome(
                self.training.scheduler.verdict(worker, update_headers.key), ""
            )
        if not await self._receive(request, worker, upload):
            if upload.is_over:
                return self._taken_over(worker, update_headers.key)
            headers = {"Upload-Offset": str(upload.filled)}
            return self._with_version(Response(status_code=202, headers=headers))
        body = self.uploads.take(worker)
        try:
            done = await self.training.submit(worker, update_headers, body.data)
        finally:
            self.uploads.release(body)
        return self._outcome(*done)

    def _upload(
        self, request: Request, worker: str, key: UpdateKey
    ) -> UploadBuffer | None:
        """Where the body goes; None if it need not be read to be answered."""
        if self._refuse_early(worker, key) is not Verdict.ACCEPT:
            return None
        headers = request.headers
        offset = request_parsing.number(
            headers.get("upload-offset", "0"), "Upload-Offset"
        )
        total = self._total(request, offset)
        if offset:
            kept = self.uploads.resume(worker, key)
            if kept is None or kept.filled != offset or len(kept.data) != total:
                at = {"Upload-Offset": str(kept.filled if kept else 0), **CLOSE}
                raise refusal(416, "offset", "resume at Upload-Offset", headers=at)
            return kept
        upload = self.uploads.begin(worker, key, total)
        if upload is None:
            text = "too many uploads at once"
            raise refusal(503, "full", text, headers=SOON | CLOSE)
        return upload

    def _total(self, request: Request, offset: int) -> int:
        headers = request.headers
        if "upload-length" in headers:
            total = request_parsing.number(headers["upload-length"], "Upload-Length")
        elif "content-length" in headers:
            total = offset + request_parsing.number(
                headers["content-length"], "Content-Length"
            )
        else:
            text = "send Content-Length, or Upload-Length with a chunked body"
            raise refusal(411, "malformed", text, headers=CLOSE)
        if total > self.max_bytes:
            text = f"{total} bytes; an update has at most {self.max_bytes}"
            raise refusal(413, "large", text, headers=CLOSE)
        return total

    async def _receive(
        self, request: Request, worker: str, upload: UploadBuffer
    ) -> bool:
        """Read the body; whether all of it is here now."""
        received = self.training.counts.received
        async for piece in request.stream():
            received[worker] = received.get(worker, 0) + len(piece)
            self.training.scheduler.mark_seen(worker, time.monotonic())
            if upload.is_over:
                return False
            if not upload.add(piece):
                self.uploads.drop(worker)
                text = "the body is longer than was announced"
                raise refusal(413, "large", text, headers=CLOSE)
        return upload.is_whole and not upload.is_over

    def _taken_over(self, worker: str, key: UpdateKey) -> Response:
        """Another request of this worker has counted, or still brings the body."""
        verdict = self._refuse_early(worker, key)
        if verdict is not Verdict.ACCEPT:
            return self._outcome(verdict, "")
        text = "another request goes on with this update, or began it anew"
        raise refusal(416, "offset", text, headers=CLOSE)

    def _refuse_early(self, worker: str, key: UpdateKey) -> Verdict:
        """Refuse before a body is read what would be refused after it."""
        verdict = self.training.scheduler.verdict(worker, key)
        if verdict not in (Verdict.ACCEPT, Verdict.DUPLICATE, Verdict.ALREADY_COUNTED):
            self._outcome(verdict, "")
        return verdict

    def _outcome(self, verdict: Verdict, why: str) -> Response:
        version = self.training.scheduler.version
        match verdict:
            case Verdict.STALE:
                raise stale(version)
            case Verdict.FINISHED:
                raise refusal(409, "finished", "training is over", version=version)
            case Verdict.UNKNOWN_SHARD:
                raise malformed("no such shard of that version was ever given out")
            case Verdict.EXCLUDED:
                text = "this worker has left, or may not take part"
                raise refusal(401, "unknown", text)
            case Verdict.INVALID:
                raise refusal(422, "rubbish", why, version=version)
            case _:
                pass
        answer: dict[str, Any] = {"counted": verdict is not Verdict.ALREADY_COUNTED}
        if verdict is Verdict.DUPLICATE:
            answer["again"] = True
        return self._json(answer | {"version": version})

    def _json(self, content: dict[str, Any]) -> Response:
        return self._with_version(JSONResponse(content))

    def _with_version(self, response: Response) -> Response:
        response.headers["X-Version"] = str(self.training.scheduler.version)
        return response


def stale(version: int) -> HTTPException:
    """The answer to what comes too late."""
    text = f"too late: the server is at version {version}"
    return refusal(409, "stale", text, version=version)
