"""Parses and checks the bodies, headers and parameters of requests."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec
from starlette.requests import Request

from ringleader.identity.pairing.spake2_exchange import is_element
from ringleader.paramserver.protocol import bodies, join_link
from ringleader.paramserver.protocol.messages import (
    MAX_REQUEST_BYTES,
    JoinRequest,
    PairRequest,
    decode_message,
)
from ringleader.paramserver.server.http.responses import CLOSE, malformed, refusal
from ringleader.paramserver.server.update_headers import UpdateHeaders, UpdateKey

MAX_WAIT_S = 30.0

_DEFAULT_WAIT_S = 25.0
_MAX_DIGITS = 15
_MAX_COMPUTE_S = 1e7
_MAX_LOSS = 1e39
"""Above any float32, and small enough that sums of losses stay finite in JSON."""

_T = TypeVar("_T")


async def read_join(request: Request) -> JoinRequest:
    """Read a request to join; a PIN in the header replaces the one in the body."""
    join = await _read_message(request, JoinRequest, "join")
    pin = request.headers.get("x-auth-pin")
    return join if pin is None else msgspec.structs.replace(join, pin=pin)


async def read_element(request: Request) -> bytes:
    """Read the SPAKE2 element of a request to pair."""
    pair = await _read_message(request, PairRequest, "pair")
    element = join_link.decode(pair.element) or b""
    if not is_element(element, "J"):
        raise malformed("'element' is not a SPAKE2 element in base64url")
    return element


async def _read_message(request: Request, kind: type[_T], what: str) -> _T:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_REQUEST_BYTES:
            text = f"the body is longer than {MAX_REQUEST_BYTES} bytes"
            raise refusal(413, "large", text, headers=CLOSE)
    try:
        return decode_message(bytes(body), kind)
    except ValueError as exc:
        raise malformed(f"the body is not a request to {what}: {exc}") from None


def parse_number(text: str | None, what: str, most: int = 10**_MAX_DIGITS) -> int:
    """Parse a whole number of a header or a path."""
    if text is None:
        raise malformed(f"{what} is missing")
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise malformed(f"{what} is not a whole number")
    value = int(text)
    if value > most:
        raise malformed(f"{what} is above {most}")
    return value


def parse_wait(request: Request) -> float:
    """Parse how many seconds a worker wants to wait for work."""
    text = request.query_params.get("wait")
    if text is None:
        return _DEFAULT_WAIT_S
    value = _parse_real(text, "wait")
    if not 0 <= value <= MAX_WAIT_S:
        raise malformed(f"wait is not between 0 and {MAX_WAIT_S:g}")
    return value


def parse_update_key(request: Request) -> UpdateKey:
    """Parse which update a request is about, from its path and headers."""
    version = parse_number(request.path_params["version"], "the version")
    shard = parse_number(request.path_params["shard"], "the shard")
    said = request.headers.get("x-worker-version")
    if said is not None and parse_number(said, "X-Worker-Version") != version:
        raise malformed("X-Worker-Version differs from the version in the path")
    first = parse_number(request.headers.get("x-first-batch"), "X-First-Batch")
    return UpdateKey(version, shard, first)


def parse_update_headers(request: Request, max_samples: int) -> UpdateHeaders:
    """Parse the headers of an update."""
    headers = request.headers
    samples = parse_number(headers.get("x-samples"), "X-Samples", max_samples)
    codec = headers.get("x-codec", "none")
    if not samples:
        raise malformed("X-Samples is 0; an update has at least one sample")
    if codec not in bodies.CODECS:
        raise malformed(f"X-Codec is none of {', '.join(bodies.CODECS)}")
    loss = _parse_real(headers.get("x-loss"), "X-Loss")
    if abs(loss) > _MAX_LOSS:
        raise malformed(f"X-Loss is above {_MAX_LOSS:g}")
    compute_s = _parse_real(headers.get("x-compute-seconds", "0"), "X-Compute-Seconds")
    if not 0 <= compute_s <= _MAX_COMPUTE_S:
        raise malformed(f"X-Compute-Seconds is not between 0 and {_MAX_COMPUTE_S:g}")
    key = parse_update_key(request)
    return UpdateHeaders(key, samples, loss, codec, compute_s)


def _parse_real(text: str | None, what: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise malformed(f"{what} is missing or not a number") from None
    if not math.isfinite(value):
        raise malformed(f"{what} is not finite")
    return value
