"""The endpoints for updates: receive a body, resume a broken one, report the verdict.

A request that cannot be accepted is refused before its body is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.messages import UpdateAnswer
from ringleader.paramserver.server.http.auth import Authenticator
from ringleader.paramserver.server.http.connection_limits import unmark_worker
from ringleader.paramserver.server.http.request_parsing import (
    parse_number,
    parse_update_headers,
    parse_update_key,
)
from ringleader.paramserver.server.http.responses import (
    CLOSE,
    SOON,
    json_response,
    refusal,
    stale,
)
from ringleader.paramserver.server.http.upload_buffers import (
    UploadBuffer,
    UploadBuffers,
)
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.paramserver.server.update_verdict import Verdict

_UPLOADS = 8
_MIN_UPLOAD_BYTES = 256 << 20
"""Memory for bodies under way: this much, or eight of the largest if that is more."""


class UpdateEndpoint:
    """Handles the requests for updates."""

    def __init__(
        self, training: Training, auth: Authenticator, *, batch_size: int
    ) -> None:
        self.training = training
        self._batch_size = batch_size
        manifest = training.store.weights.manifest
        self.max_bytes = bodies.max_update_bytes(manifest)
        self.uploads = UploadBuffers(max(_UPLOADS * self.max_bytes, _MIN_UPLOAD_BYTES))
        self._auth = auth
        self.on_verdict: Callable[[Verdict], None] = lambda _: None
        """Called with the verdict of each answer."""

    def sweep(self) -> None:
        """Drop uploads that can no longer be accepted."""
        verdict = self.training.scheduler.verdict
        self.uploads.sweep(lambda worker, key: verdict(worker, key) is Verdict.ACCEPT)

    async def resume(self, request: Request) -> Response:
        """Handle HEAD: respond with how much of the update has arrived."""
        worker = self._auth.authenticate(request)
        key = parse_update_key(request)
        self._refuse_early(worker, key)
        kept = self.uploads.resume(worker, key)
        offset = str(kept.filled if kept else 0)
        return self._with_version(
            Response(status_code=204, headers={"Upload-Offset": offset})
        )

    async def update(self, request: Request) -> Response:
        """Handle PUT: receive the update, submit it, respond with the verdict."""
        worker = self._auth.authenticate(request)
        headers = parse_update_headers(request, self._max_samples(worker))
        upload = self._begin_upload(request, worker, headers.key)
        if upload is None:
            verdict = self.training.scheduler.verdict(worker, headers.key)
            return self._respond(verdict, "")
        if not await self._receive(request, worker, upload):
            if upload.is_over:
                return self._taken_over(worker, headers.key)
            offset = {"Upload-Offset": str(upload.filled)}
            return self._with_version(Response(status_code=202, headers=offset))
        body = self.uploads.take(worker)
        try:
            verdict, reason = await self.training.submit(worker, headers, body.data)
        finally:
            self.uploads.release(body)
        if self.training.scheduler.workers[worker].is_quarantined:
            unmark_worker(request, worker)
        return self._respond(verdict, reason)

    def _max_samples(self, worker: str) -> int:
        """Return how many samples the worker was given, or could have been."""
        scheduler = self.training.scheduler
        lease = scheduler.leases.get(worker)
        return self._batch_size * (lease.steps if lease else scheduler.plan.most_steps)

    def _begin_upload(
        self, request: Request, worker: str, key: UpdateKey
    ) -> UploadBuffer | None:
        """Return the buffer for the body; None if the verdict does not depend on it."""
        if self._refuse_early(worker, key) is not Verdict.ACCEPT:
            return None
        offset_text = request.headers.get("upload-offset", "0")
        offset = parse_number(offset_text, "Upload-Offset")
        total = self._total_bytes(request, offset)
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

    def _total_bytes(self, request: Request, offset: int) -> int:
        headers = request.headers
        if "upload-length" in headers:
            total = parse_number(headers["upload-length"], "Upload-Length")
        elif "content-length" in headers:
            length = parse_number(headers["content-length"], "Content-Length")
            total = offset + length
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
        """Read the body into the buffer; return whether the buffer is full."""
        received = self.training.traffic.received
        async for piece in request.stream():
            received[worker] = received.get(worker, 0) + len(piece)
            self.training.scheduler.mark_seen(worker, time.monotonic())
            if upload.is_over:
                return False
            if not upload.add(piece):
                self.uploads.drop(worker)
                text = "the body is longer than announced"
                raise refusal(413, "large", text, headers=CLOSE)
        return upload.is_whole and not upload.is_over

    def _taken_over(self, worker: str, key: UpdateKey) -> Response:
        """Respond to a request whose upload another request of the worker took over."""
        verdict = self._refuse_early(worker, key)
        if verdict is not Verdict.ACCEPT:
            return self._respond(verdict, "")
        text = "another request continues this upload, or began it again"
        raise refusal(416, "offset", text, headers=CLOSE)

    def _refuse_early(self, worker: str, key: UpdateKey) -> Verdict:
        """Return the verdict; raise its refusal if it does not depend on the body."""
        verdict = self.training.scheduler.verdict(worker, key)
        if verdict not in (Verdict.ACCEPT, Verdict.DUPLICATE, Verdict.ALREADY_COUNTED):
            self._respond(verdict, "")
        return verdict

    def _respond(self, verdict: Verdict, reason: str) -> Response:
        """Build the response for a verdict, or raise it if it is a refusal."""
        self.on_verdict(verdict)
        version = self.training.scheduler.version
        match verdict:
            case Verdict.STALE:
                raise stale(version)
            case Verdict.FINISHED:
                raise refusal(409, "finished", "training is over", version=version)
            case Verdict.NOT_LEASED:
                text = "these batches were not given to this worker: ask for work"
                raise refusal(409, "unassigned", text, version=version)
            case Verdict.EXCLUDED:
                text = "this worker has left, or may not take part"
                raise refusal(401, "unknown", text)
            case Verdict.INVALID:
                raise refusal(422, "rubbish", reason, version=version)
            case _:
                pass
        answer = UpdateAnswer(
            counted=verdict is not Verdict.ALREADY_COUNTED,
            version=version,
            again=verdict is Verdict.DUPLICATE,
        )
        return self._with_version(json_response(answer))

    def _with_version(self, response: Response) -> Response:
        response.headers["X-Version"] = str(self.training.scheduler.version)
        return response
