"""The JSON messages of the protocol: one struct each, used by server and worker.

The OpenAPI page shows the schemas of the same structs. Decoding checks types, ranges,
lengths and patterns. Requests with unknown fields are refused, because a misspelled
field would be lost silently. Unknown fields of answers are ignored, so that a newer
server may add some.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from ringleader.decoding import from_json

MAX_REQUEST_BYTES = 8192
MAX_STEPS = 10_000
"""Optimizer steps of one assignment."""
MAX_BATCH_SIZE = 1_000_000
MAX_INTEGER = 2**53
"""JSON numbers above this are not exact in every implementation."""

Mode = Literal["bulk", "rounds", "bounded", "async"]
MODES: tuple[Mode, ...] = get_args(Mode)
ErrorWord = Literal[
    "malformed",
    "unknown",
    "quarantined",
    "locked",
    "nothing",
    "slow",
    "stale",
    "unassigned",
    "finished",
    "task",
    "large",
    "offset",
    "rubbish",
    "busy",
    "full",
    "stopping",
]
WorkerState = Literal["quarantined", "left", "computing", "waiting", "gone"]

# A bare "$" would also match before a line feed at the end.
_END = r"$(?!\n)"
_Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
_Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
_Real = Annotated[float, Meta(ge=0)]
_Short = Annotated[str, Meta(max_length=256)]
_Text = Annotated[str, Meta(max_length=4096)]
_Part = Annotated[str, Meta(max_length=64)]
_Nonce = Annotated[str, Meta(pattern=f"^([0-9a-f]{{32}})?{_END}")]
_Token = Annotated[str, Meta(pattern=f"^[A-Za-z0-9_-]{{1,256}}{_END}")]
_WorkerId = Annotated[str, Meta(pattern=f"^w[1-9][0-9]{{0,8}}{_END}")]
_Codec = Annotated[str, Meta(pattern=f"^[a-z0-9.:]{{1,32}}{_END}")]
_Digest = Annotated[str, Meta(pattern=f"^[0-9a-f]{{64}}{_END}")]

_T = TypeVar("_T")


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a worker."""

    def __repr__(self) -> str:  # codes and PINs must not reach a log
        return f"<{type(self).__name__}>"


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the server, whose text a worker can print as it is."""

    def __post_init__(self) -> None:
        """Replace control characters, which a terminal would obey, by spaces."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, str) and not value.isprintable():
                text = "".join(c if c.isprintable() else " " for c in value)
                msgspec.structs.force_setattr(self, name, text)


class PairRequest(_Request, frozen=True, kw_only=True):
    """The worker's SPAKE2 element in base64url."""

    element: _Short


class PairAnswer(_Answer, frozen=True, kw_only=True):
    """The server's SPAKE2 element, and what only the right PIN opens; base64url."""

    element: _Short
    sealed: _Short


class JoinRequest(_Request, frozen=True, kw_only=True, omit_defaults=True):
    """A request to join, with the code of a join link, a PIN, or neither."""

    task: Annotated[dict[_Part, _Short], Meta(max_length=32)]
    code: _Short | None = None
    pin: _Short | None = None
    name: _Short = ""
    device: _Short = ""
    nonce: _Nonce = ""
    receipt: _Short | None = None


class JoinAnswer(_Answer, frozen=True, kw_only=True):
    """The token of a worker that was admitted, and the settings of the run."""

    worker: _WorkerId
    token: _Token
    version: _Count
    rounds: _Count
    mode: Mode
    shards: _Positive
    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)]
    """The most optimizer steps of an assignment."""
    batch_size: Annotated[int, Meta(ge=1, le=MAX_BATCH_SIZE)]
    seed: _Count
    manifest: _Digest
    codecs: Annotated[tuple[_Codec, ...], Meta(max_length=32)]
    codec: _Codec
    weights_codec: _Codec
    max_update_bytes: _Count
    task: _Short

    @property
    def is_bulk(self) -> bool:
        """True if only weights of the assigned version can be computed on."""
        return self.mode == "bulk"

    @property
    def is_local(self) -> bool:
        """True if the worker keeps its optimizer, and always sends differences."""
        return self.mode == "rounds"

    def __repr__(self) -> str:  # the token must not reach a log
        return f"<JoinAnswer {self.worker}>"


class Assignment(_Answer, frozen=True, kw_only=True, tag_field="kind", tag="step"):
    """Batches to compute on the weights of a version."""

    version: _Count
    shard: _Count
    shards: _Positive
    first_batch: _Count
    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)]
    batch_size: Annotated[int, Meta(ge=1, le=MAX_BATCH_SIZE)]
    lr: _Real
    """Factor for the learning rates of the worker's optimizer; used if steps > 1."""

    @property
    def batches(self) -> range:
        """The numbers of the batches."""
        return range(self.first_batch, self.first_batch + self.steps)


class RunSummary(_Answer, frozen=True, kw_only=True):
    """Totals of a run."""

    version: _Count
    rounds: _Count
    seconds: _Real
    loss: float | None
    workers: _Count
    updates: _Count
    samples: _Count
    bytes_received: _Count
    bytes_sent: _Count


class Finished(_Answer, frozen=True, kw_only=True, tag_field="kind", tag="finished"):
    """The answer to a request for work when training is over."""

    version: _Count
    summary: RunSummary


WorkAnswer = Assignment | Finished


class UpdateAnswer(_Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to an update that was not refused."""

    counted: bool
    version: _Count
    again: bool = False
    """The same update was counted before."""


class Difference(_Answer, frozen=True, kw_only=True):
    """A part of the task fingerprint that differs; null where a side has none."""

    part: _Part
    server: _Short | None
    worker: _Short | None


class ErrorAnswer(_Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A refusal: a word for programs and a sentence for people."""

    error: ErrorWord
    message: _Text
    version: _Count | None = None
    differences: Annotated[tuple[Difference, ...], Meta(max_length=64)] | None = None


class WorkerStatus(_Answer, frozen=True, kw_only=True):
    """One worker on the status page."""

    id: _WorkerId
    name: _Short
    device: _Short
    state: WorkerState
    seen_s: _Real
    updates: _Count
    samples_per_s: _Real
    behind: int | None
    bytes_received: _Count
    bytes_sent: _Count


class Status(_Answer, frozen=True, kw_only=True):
    """The run as the status page shows it. It holds no secret, address or path."""

    task: _Short
    mode: Mode
    steps: _Positive
    version: _Count
    rounds: _Count
    finished: bool
    shards: _Positive
    counted: _Count
    waiting_for: _Count
    """Workers that are missing. The first round needs ``--workers`` of them, later ones
    one, or as many as the quorum (three or more) with ``--aggregate`` or ``--clip``."""
    awaited: Annotated[list[_WorkerId], Meta(max_length=1000)]
    """Workers whose updates this round waits for."""
    seconds: _Real
    eta_s: _Real | None
    losses: Annotated[list[tuple[int, float]], Meta(max_length=1000)]
    workers: Annotated[list[WorkerStatus], Meta(max_length=1000)]
    bytes_received: _Count
    bytes_sent: _Count


def encode_message(message: msgspec.Struct) -> bytes:
    """Encode a message as JSON."""
    return msgspec.json.encode(message)


def decode_message(data: bytes, kind: type[_T]) -> _T:
    """Decode and check a message; ValueError says what is wrong with it and where."""
    try:
        return from_json(data, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(str(exc)[:300]) from None
