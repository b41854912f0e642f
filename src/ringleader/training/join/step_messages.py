"""What a source sends to a learner: parameters, and the steps of its optimizer.

A message is a header and then raw bytes: the gradients of a step, of all parameters
that the learner had before it, in the order of the header; or the tensors of parameters
that are new to it, as they are after the step ``version``. So each parameter is copied
at its own version, and follows by the same optimizer from then on.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ringleader.decoding import from_msgpack
from ringleader.errors import PeerLost, ProtocolError
from ringleader.node.protocol import framing
from ringleader.training.state.manifest import Entry

_SILENT = "is silent"
MAX_HEADER_BYTES = 16 << 20
MAX_SOURCES = 64

ALIVE_S = 1.0
"""A source that has nothing to send repeats its last header this often, without new
content: a machine that is stopped keeps its connections, and is told from a slow step
by its silence alone."""

SILENT_S = 10.0
"""A source that sends no byte for so long counts as lost."""

_T = TypeVar("_T")


class LearnerHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a learner: every ``count``-th part of the state, by size."""

    layout: bytes
    fingerprint: bytes
    index: Annotated[int, Meta(ge=0, lt=MAX_SOURCES)]
    count: Annotated[int, Meta(ge=1, le=MAX_SOURCES)]


class SourceReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the source serves the learner; ``refusal`` is empty if it does."""

    refusal: str = ""


class NewParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter that is handed over: its own tensor and those of the optimizer.

    ``index`` counts the parameters of the model; ``values`` are the plain values that
    the optimizer keeps for it, encoded.
    """

    index: int
    tensors: tuple[Entry, ...]
    values: bytes


class StepHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of the source, or parameters between two steps; their bytes follow."""

    version: int
    groups: bytes
    """Hyperparameters of the optimizer's groups in this step, encoded."""
    gradients: tuple[int, ...]
    """Indices of the parameters whose gradients follow."""
    new: tuple[NewParameter, ...]
    num_left: int
    """Parameters that the learner still lacks after this."""
    backlog: int
    """Bytes of later steps that the source has taken already."""


async def read_message(
    reader: asyncio.StreamReader, who: str, kind: type[_T], limit: int
) -> _T:
    """Read one frame; PeerLost at the end, ProtocolError if it is no such message."""
    try:
        async with asyncio.timeout(SILENT_S):
            body = await framing.read(reader, who, limit)
    except TimeoutError:
        raise PeerLost(who, _SILENT) from None
    try:
        return from_msgpack(body, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        text = f"sent no {kind.__name__}: {exc}"
        raise ProtocolError(who, text[:300]) from None


async def read_into(reader: asyncio.StreamReader, who: str, room: memoryview) -> None:
    """Fill ``room`` with the next bytes."""
    begin = 0
    try:
        while begin < len(room):
            async with asyncio.timeout(SILENT_S):
                data = await reader.read(min(len(room) - begin, 1 << 20))
            if not data:
                raise PeerLost(who, "closed the connection")
            room[begin : begin + len(data)] = data
            begin += len(data)
    except TimeoutError:
        raise PeerLost(who, _SILENT) from None
    except OSError as exc:
        raise PeerLost(who, f"closed the connection ({exc})") from exc
