"""Weights down and updates up, each going on where the line broke."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ringleader.errors import PeerLost, ProtocolError
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.worker.response_body import ResponseBody
from ringleader.paramserver.worker.session import SERVER, Request, Response, Session

_WORTH_RESUMING_BYTES = 256 << 10
"""Below, asking how much arrived takes as long as sending it again."""
_SLACK_BYTES = 1 << 20
"""Room for the header of the file and the frame around it."""
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class DownloadedWeights:
    """The weights of one version, as they came."""

    version: int
    etag: str
    tensors: Mapping[str, Tensor]


class Download:
    """Weights on their way; what has arrived stays when the line breaks."""

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
        """The weights; ``held`` if the server has no others; or its refusal.

        Outside bulk mode the server gives newer ones when it has them.
        """
        answer = self._session.retry(
            lambda: self._attempt(held), lambda: len(self._body.data)
        )
        return held if answer.status == 304 and held else self._found(answer)

    def try_once(self) -> DownloadedWeights | Response:
        """The same, but what goes wrong is raised."""
        return self._found(self._attempt(None))

    def _attempt(self, held: DownloadedWeights | None) -> Response:
        headers = self._body.resume_headers()
        if not headers and held is not None and held.etag:
            headers = {"If-None-Match": held.etag}
        path = f"/v1/weights/{self.version}?codec={self._codec}"
        return self._session.send_once(Request("GET", path, headers), self._body)

    def _found(self, answer: Response) -> DownloadedWeights | Response:
        if answer.status not in (200, 206):
            return answer
        tensors = bodies.read_weights(self._manifest, self._body.data, self._codec)
        return DownloadedWeights(_version_of(answer), self._body.etag, tensors)


class Upload:
    """One update on its way; it counts once, however often it is sent."""

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
        """What the server thinks of it."""
        return self._session.retry(self._attempt, lambda: self._offset)

    def _attempt(self) -> Response:
        self._offset = self._arrived() if self._was_tried else 0
        headers = dict(self._headers)
        if self._offset:
            headers["Upload-Offset"] = str(self._offset)
            headers["Upload-Length"] = str(len(self._body))
        self._was_tried = True
        request = Request("PUT", self._path, headers, self._body[self._offset :])
        answer = self._session.send_once(request)
        if answer.status == 202:
            raise PeerLost(SERVER, "the update broke off on its way")
        if answer.status == 416:  # the server kept less than it said: begin anew
            self._was_tried = False
            raise PeerLost(SERVER, "it wants the update from its beginning")
        return answer

    def _arrived(self) -> int:
        """How much of a broken upload the server has."""
        if len(self._body) < _WORTH_RESUMING_BYTES:
            return 0
        answer = self._session.send_once(Request("HEAD", self._path, self._headers))
        offset = _number(answer.headers.get("Upload-Offset", "0")) or 0
        return offset if offset < len(self._body) else 0


def _version_of(answer: Response) -> int:
    version = _number(answer.headers.get("X-Version", ""))
    if version is None:
        raise ProtocolError(SERVER, "weights came without the number of their version")
    return version


def _number(text: str) -> int | None:
    """A whole number of a header; None if it is none."""
    is_one = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if is_one else None
