"""Downloads weights and uploads updates, and resumes them if the connection breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ringleader.errors import PeerLost, ProtocolError
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.worker.http_errors import SERVER
from ringleader.paramserver.worker.response_body import ResponseBody
from ringleader.paramserver.worker.session import Request, Response, Session

_MIN_RESUMED_BYTES = 256 << 10
"""A smaller upload is sent again as fast as the server can be asked what it has."""
_SLACK_BYTES = 1 << 20
"""Room for the header of the file and the zstd frame."""
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class DownloadedWeights:
    """The weights of one version, as decoded."""

    version: int
    etag: str
    tensors: Mapping[str, Tensor]


class Download:
    """A download of weights; what has arrived is kept if the connection breaks."""

    def __init__(
        self, session: Session, manifest: Manifest, codec: str, version: int
    ) -> None:
        self.version = version
        self._session = session
        self._manifest = manifest
        self._codec = codec
        self._body = ResponseBody(manifest.num_bytes + _SLACK_BYTES)

    def run(
        self, held: DownloadedWeights | None = None
    ) -> DownloadedWeights | Response:
        """Download until it succeeds; return the weights, or the server's refusal.

        Returns ``held`` if the server has no newer weights. Outside bulk mode the
        server may send newer weights than ``version``.
        """
        response = self._session.retry(
            lambda: self._attempt(held), lambda: len(self._body.data)
        )
        return held if response.status == 304 and held else self._decoded(response)

    def try_once(self) -> DownloadedWeights | Response:
        """Like ``run``, but raise the error if the first attempt fails."""
        return self._decoded(self._attempt(None))

    def _attempt(self, held: DownloadedWeights | None) -> Response:
        headers = self._body.resume_headers()
        if not headers and held is not None and held.etag:
            headers = {"If-None-Match": held.etag}
        path = f"/v1/weights/{self.version}?codec={self._codec}"
        return self._session.send_once(Request("GET", path, headers), self._body)

    def _decoded(self, response: Response) -> DownloadedWeights | Response:
        if response.status not in (200, 206):
            return response
        tensors = bodies.read_weights(self._manifest, self._body.data, self._codec)
        return DownloadedWeights(_version_of(response), self._body.etag, tensors)


class Upload:
    """An upload of one update; the server counts it once, however often it is sent."""

    def __init__(
        self, session: Session, path: str, body: bytes, headers: Mapping[str, str]
    ) -> None:
        self._session = session
        self._path = path
        self._body = memoryview(body)
        self._headers = headers
        self._offset = 0
        self._was_tried = False

    def run(self) -> Response:
        """Upload until the server responds to the whole update."""
        return self._session.retry(self._attempt, lambda: self._offset)

    def _attempt(self) -> Response:
        self._offset = self._arrived() if self._was_tried else 0
        headers = dict(self._headers)
        if self._offset:
            headers["Upload-Offset"] = str(self._offset)
            headers["Upload-Length"] = str(len(self._body))
        self._was_tried = True
        request = Request("PUT", self._path, headers, self._body[self._offset :])
        response = self._session.send_once(request)
        if response.status == 202:
            raise PeerLost(SERVER, "it received only a part of the update")
        if response.status == 416:  # it kept less than it said: send everything
            self._was_tried = False
            raise PeerLost(SERVER, "it wants the update from its beginning")
        return response

    def _arrived(self) -> int:
        """Ask how many bytes of a broken upload the server has."""
        if len(self._body) < _MIN_RESUMED_BYTES:
            return 0
        request = Request("HEAD", self._path, self._headers)
        response = self._session.send_once(request)
        offset = _parse_number(response.headers.get("Upload-Offset", "0")) or 0
        return offset if offset < len(self._body) else 0


def _version_of(response: Response) -> int:
    version = _parse_number(response.headers.get("X-Version", ""))
    if version is None:
        raise ProtocolError(SERVER, "it sent weights without X-Version")
    return version


def _parse_number(text: str) -> int | None:
    """Parse the whole number of a header; None if it is not one."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None
