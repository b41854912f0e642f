"""What a process asks its agent, and what the agent answers.

Both are of one user on one machine. The decoders are strict all the same.
"""

from __future__ import annotations

import msgspec

from ringleader.errors import ConfigError, ProtocolError
from ringleader.node.protocol.node_state import Count, Facts, Job, Seconds
from ringleader.node.protocol.snapshot import Snapshot


class _Tagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A message that carries the name of its type."""


class Enter(_Tagged, frozen=True, kw_only=True):
    """Take part in ``job``; answered by Progress until Entered or Failed."""

    job: Job
    min_nodes: Count
    max_nodes: Count
    wait_s: Seconds
    timeout_s: Seconds
    facts: Facts = Facts()


class Serve(_Tagged, frozen=True):
    """The store of ``round`` listens on 127.0.0.1 at ``port``."""

    round: str
    port: int


class Check(_Tagged, frozen=True):
    """Whether the round of ``job`` goes on; answered by Checked."""

    job: str


class Quit(_Tagged, frozen=True):
    """This process has left ``job``; answered by Done once all others know."""

    job: str
    ok: bool | None = None
    """Whether it succeeded; None where nobody need be told."""


class Look(_Tagged, frozen=True):
    """Everything the agent knows; answered by a Snapshot."""


class Entered(_Tagged, frozen=True, kw_only=True):
    """The round has begun, or begins as soon as the store is there."""

    round: str
    rank: int
    size: int
    store_port: int
    """Where the store is, on 127.0.0.1; 0: you are rank 0, open it and say Serve."""
    names: list[str]
    """The machines in rank order."""
    credentials: str
    """Path of the file with which workers prove who they are."""
    addresses: list[str]
    """Ours, for the workers' data links."""


class Progress(_Tagged, frozen=True):
    """What the agent waits for, in words for a user."""

    text: str


class Failed(_Tagged, frozen=True):
    """The request came to nothing."""

    text: str


class Checked(_Tagged, frozen=True):
    """The answer to Check."""

    is_stale: bool
    reason: str = ""


class Done(_Tagged, frozen=True):
    """It is so."""


Request = Enter | Serve | Check | Quit | Look
Reply = Entered | Progress | Failed | Checked | Done | Snapshot

_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLY: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def decode_request(body: bytes) -> Request:
    """A request of a process of this user."""
    try:
        return _REQUEST.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError("a local process", f"request: {exc}") from exc


def check(request: Enter) -> None:
    """ConfigError if the agent would not understand it."""
    try:
        _REQUEST.decode(msgspec.msgpack.encode(request))
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"job {request.job!r}: {exc}") from exc


def decode_reply(body: bytes) -> Reply:
    """A reply of our agent."""
    try:
        return _REPLY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError("the agent", f"reply: {exc}") from exc
