"""What strangers and workers may say, parsed strictly; anything else is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ringleader.identity.pairing.spake2_exchange import is_element
from ringleader.paramserver.protocol import bodies, join_link
from ringleader.paramserver.server.update_headers import UpdateHeaders, UpdateKey

MAX_JOIN_BYTES = 8192
MAX_WAIT_S = 30.0
CLOSE = {"Connection": "close"}
"""For answers that are given before the body is read: no more of it is wanted."""
SOON = {"Retry-After": "2"}

_DEFAULT_WAIT_S = 25.0
_MAX_DIGITS = 15
_MAX_LOSS = 1e39
"""More than any float32; sums of this many stay finite, and so does what is saved."""

_Short = Annotated[str, msgspec.Meta(max_length=256)]
_Nonce = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")]
_Part = Annotated[str, msgspec.Meta(max_length=64)]


class Join(msgspec.Struct, frozen=True):
    """The body of a request to join."""

    task: Annotated[dict[_Part, _Short], msgspec.Meta(max_length=32)]
    code: _Short | None = None
    pin: _Short | None = None
    name: _Short = ""
    device: _Short = ""
    nonce: _Nonce = ""
    receipt: _Short | None = None

    def __repr__(self) -> str:
        return "<join>"


class _Pair(msgspec.Struct, frozen=True):
    element: _Short


def refusal(
    status: int,
    error: str,
    message: str,
    *,
    headers: Mapping[str, str] | None = None,
    **more: object,
) -> HTTPException:
    """What is raised to answer with an error of the protocol."""
    detail: object = {"error": error, "message": message, **more}
    return HTTPException(status, detail, headers)  # type: ignore[arg-type] # any JSON


def malformed(message: str) -> HTTPException:
    """The request is none."""
    return refusal(400, "malformed", message)


def locked() -> HTTPException:
    """The budget of the PIN is spent."""
    text = "too many wrong PINs; use the join link, or restart the server"
    return refusal(403, "locked", text)


async def read_join(request: Request) -> Join:
    """The body of a request to join, and the PIN from its header."""
    body = await read_small(request, MAX_JOIN_BYTES)
    try:
        join = msgspec.json.decode(body, type=Join)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise malformed(f"the body is no request to join: {exc}"[:300]) from None
    pin = request.headers.get("x-auth-pin")
    return join if pin is None else msgspec.structs.replace(join, pin=pin)


async def read_element(request: Request) -> bytes:
    """The body of a request to pair: an element of SPAKE2, as far as one can see."""
    body = await read_small(request, MAX_JOIN_BYTES)
    try:
        text = msgspec.json.decode(body, type=_Pair).element
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise malformed(f"the body is no request to pair: {exc}"[:300]) from None
    element = join_link.decode(text) or b""
    if not is_element(element, "J"):
        raise malformed("the element is none")
    return element


async def read_small(request: Request, max_bytes: int) -> bytes:
    """A whole body of at most ``most_bytes``."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            text = f"the body is longer than {max_bytes} bytes"
            raise refusal(413, "large", text, headers=CLOSE)
    return bytes(body)


def number(text: str | None, what: str, most: int = 10**_MAX_DIGITS) -> int:
    """A whole number as a header or a path has it."""
    if text is None:
        raise malformed(f"{what} is missing")
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise malformed(f"{what} is no number")
    value = int(text)
    if value > most:
        raise malformed(f"{what} is above {most}")
    return value


def parse_wait(request: Request) -> float:
    """How long a worker wants to wait for work."""
    text = request.query_params.get("wait")
    if text is None:
        return _DEFAULT_WAIT_S
    value = _real(text, "wait")
    if not 0 <= value <= MAX_WAIT_S:
        raise malformed(f"wait is not between 0 and {MAX_WAIT_S:g}")
    return value


def parse_update_key(request: Request) -> UpdateKey:
    """Which update a request is about."""
    version = number(request.path_params["version"], "the version")
    shard = number(request.path_params["shard"], "the shard")
    said = request.headers.get("x-worker-version")
    if said is not None and number(said, "X-Worker-Version") != version:
        raise malformed("X-Worker-Version differs from the version in the path")
    first = number(request.headers.get("x-first-batch"), "X-First-Batch")
    return UpdateKey(version, shard, first)


def parse_update_headers(request: Request, max_samples: int) -> UpdateHeaders:
    """What the headers say about an update."""
    headers = request.headers
    samples = number(headers.get("x-samples"), "X-Samples", max_samples)
    codec = headers.get("x-codec", "none")
    if not samples:
        raise malformed("X-Samples is 0: an update of nothing")
    if codec not in bodies.CODECS:
        raise malformed(f"X-Codec is none of {', '.join(bodies.CODECS)}")
    loss = _real(headers.get("x-loss"), "X-Loss")
    if abs(loss) > _MAX_LOSS:
        raise malformed(f"X-Loss is above {_MAX_LOSS:g}")
    return UpdateHeaders(parse_update_key(request), samples, loss, codec)


def _real(text: str | None, what: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise malformed(f"{what} is missing or no number") from None
    if not math.isfinite(value):
        raise malformed(f"{what} is not finite")
    return value
