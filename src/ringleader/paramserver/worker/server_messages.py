"""What the server says in JSON, checked before anything believes it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringleader.errors import ProtocolError
from ringleader.paramserver.worker.trainer import Assignment

Json = Mapping[str, Any]

_MAX_INTEGER = 2**53
"""Above, JSON's numbers are not exact for everybody."""
_MAX_STEPS = 10_000
_MAX_SAMPLES = 1 << 20
_MAX_TEXT = 4096
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,256}")
SERVER = "the server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a worker is told when it joins."""

    worker: str
    token: str
    version: int
    rounds: int
    mode: str
    seed: int
    manifest: str
    codecs: tuple[str, ...]
    codec: str
    weights_codec: str
    task: str

    @property
    def is_bulk(self) -> bool:
        """Whether weights of other versions than the assigned one are of no use."""
        return self.mode == "bulk"


def parse(body: bytes) -> Json:
    """A JSON object; ProtocolError for anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError(SERVER, "an answer is not JSON") from exc
    if not isinstance(found, dict):
        raise ProtocolError(SERVER, "an answer is not a JSON object")
    return found


def terms_of(answer: Json) -> Terms:
    """The answer to a join."""
    codecs = answer.get("codecs")
    if not isinstance(codecs, list):
        raise ProtocolError(SERVER, "'codecs' is not a list of names")
    token = text_of(answer, "token")
    if not _TOKEN.fullmatch(token):  # it becomes part of a header
        raise ProtocolError(SERVER, "'token' is none")
    return Terms(
        worker=text_of(answer, "worker"),
        token=token,
        version=whole(answer, "version"),
        rounds=whole(answer, "rounds"),
        mode=text_of(answer, "mode"),
        seed=whole(answer, "seed"),
        manifest=text_of(answer, "manifest"),
        codecs=tuple(text_of({"codecs": name}, "codecs") for name in codecs),
        codec=text_of(answer, "codec"),
        weights_codec=text_of(answer, "weights_codec"),
        task=text_of(answer, "task"),
    )


def assignment_of(answer: Json) -> Assignment:
    """An assignment."""
    return Assignment(
        version=whole(answer, "version"),
        shard=whole(answer, "shard"),
        shards=whole(answer, "shards", least=1),
        first_batch=whole(answer, "first_batch"),
        steps=whole(answer, "steps", least=1, most=_MAX_STEPS),
        batch_size=whole(answer, "batch_size", least=1, most=_MAX_SAMPLES),
        lr=_rate(answer),
    )


def whole(answer: Json, name: str, least: int = 0, most: int = _MAX_INTEGER) -> int:
    """A whole number of an answer."""
    value = answer.get(name)
    if type(value) is not int or not least <= value <= most:
        shown = repr(value)[:40]
        raise ProtocolError(SERVER, f"{name!r} is {shown}, not {least} to {most}")
    return value


def text_of(answer: Json, name: str) -> str:
    """A text of an answer, without what could upset a terminal."""
    value = answer.get(name)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ProtocolError(SERVER, f"{name!r} is not a text")
    return "".join(c if c.isprintable() else " " for c in value)


def _rate(answer: Json) -> float:
    value = answer.get("lr")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= (value or 0) <= sys.float_info.max:
        raise ProtocolError(SERVER, f"'lr' is {repr(value)[:40]}, not a learning rate")
    return float(value or 0)
