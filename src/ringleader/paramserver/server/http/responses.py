"""Builds the server's HTTP responses: messages as JSON, and refusals."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ringleader.paramserver.protocol.messages import (
    Difference,
    ErrorAnswer,
    ErrorWord,
    encode_message,
)

CLOSE = {"Connection": "close"}
"""For responses that are sent before the body is read: the rest of it is unwanted."""
SOON = {"Retry-After": "2"}


class Refusal(HTTPException):
    """Raised by an endpoint to respond with an error of the protocol."""

    def __init__(
        self, status: int, answer: ErrorAnswer, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, answer.message, headers)
        self.answer = answer

    def response(self) -> Response:
        """The error as a JSON response."""
        return json_response(self.answer, self.status_code, self.headers)


def json_response(
    message: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Encode a message as the body of a response."""
    return Response(
        encode_message(message), status, headers, media_type="application/json"
    )


def refusal(
    status: int,
    error: ErrorWord,
    message: str,
    *,
    headers: Mapping[str, str] | None = None,
    version: int | None = None,
    differences: tuple[Difference, ...] | None = None,
) -> Refusal:
    """Build an error of the protocol, to be raised."""
    answer = ErrorAnswer(
        error=error, message=message, version=version, differences=differences
    )
    return Refusal(status, answer, headers)


def malformed(message: str) -> Refusal:
    """Build the error for a request that does not follow the protocol."""
    return refusal(400, "malformed", message)


def locked() -> Refusal:
    """Build the error for a server whose PIN attempts are all spent."""
    text = "too many wrong PINs; use the join link, or restart the server"
    return refusal(403, "locked", text)


def stale(version: int) -> Refusal:
    """Build the error for weights or updates of a version that is over."""
    text = f"too late: the server is at version {version}"
    return refusal(409, "stale", text, version=version)
