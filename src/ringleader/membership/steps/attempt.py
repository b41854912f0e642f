"""Attempt, chain and lineage names: how a history of training steps is named."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from ringleader.membership.member import ViewId

LineageName = Annotated[str, Meta(pattern=r"^([0-9]{1,9}\.[0-9a-f]{16})?\Z")]
"""(number of forks).(hash); empty before the first state."""

Chain = Annotated[bytes, Meta(max_length=16)]
"""Hash of all attempts that led to a state; empty before the first state."""

Version = Annotated[int, Meta(ge=0, le=1 << 53)]


class Attempt(NamedTuple):
    """One try at making ``version``: the reduction of that step in one view.

    All members that complete an attempt hold the same bytes.
    """

    view: ViewId
    version: Annotated[int, Meta(ge=1, le=1 << 53)]

    def __str__(self) -> str:
        return f"step {self.version} in view {self.view}"


def first_chain(lineage: str) -> bytes:
    """Return the chain of a state that no step has changed yet."""
    return _hash(("chain", lineage))


def extend_chain(chain: bytes, attempt: Attempt) -> bytes:
    """Return the chain after the result of ``attempt`` was delivered."""
    return _hash((chain, attempt))


def new_lineage(view_id: ViewId) -> str:
    """Return the name of the history that begins in a view without any history."""
    return f"0.{_hash(('lineage', '', view_id)).hex()[:16]}"


def fork_of(lineage: str, view_id: ViewId) -> str:
    """Return the name under which a view continues a lineage that it may not keep."""
    name = _hash(("lineage", lineage, view_id)).hex()[:16]
    return f"{num_forks(lineage) + 1}.{name}"


def num_forks(lineage: str) -> int:
    """Return how often a history was forked since it began."""
    return int(lineage.partition(".")[0] or 0)


def _hash(content: object) -> bytes:
    return sha256(msgspec.msgpack.encode(content)).digest()[:16]
