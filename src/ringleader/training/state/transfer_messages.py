"""The messages of a transfer of state, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from ringleader.errors import ProtocolError
from ringleader.training.state.verdict import Repair

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Roles:
    """Ranks that have the state, at the top of its history, and those that adopt it."""

    sources: tuple[int, ...]
    adopters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transferred:
    """What a transfer did, the same on all members."""

    num_bytes: int = 0
    """Bytes of the state."""
    copied_bytes: int = 0
    """Bytes that each adopter received: fewer if all of them were warm."""
    seconds: float = 0.0
    is_exact: bool = True
    """Whether all members compute equal bits, so that all digests had to be equal."""
    root: bytes = b""
    """Root digest of the state after the transfer, on sources and adopters."""
    refused: dict[int, str] = field(default_factory=dict)
    """Ranks whose model differs, and how. Then nothing was copied: these members raise
    LayoutMismatch and leave; the next view copies."""
    repaired: tuple[Repair, ...] = ()


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Layout and manifest of the first source, encoded."""

    layout: bytes
    manifest: bytes


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of every rank to the offer. ``refusal`` is empty if the state fits."""

    refusal: str
    fingerprint: bytes
    lacks: bool
    """Whether it has to adopt; also a source that lacks a tensor of the first one."""
    is_warm: bool
    """Whether it followed the run before, so that most of its tensors are right."""


def decode_all(gathered: list[bytes], decode: Callable[[bytes], _T]) -> list[_T]:
    """Decode the messages of all ranks; ProtocolError names the rank of a bad one."""
    found: list[_T] = []
    for rank, data in enumerate(gathered):
        try:
            found.append(decode(data))
        except (msgspec.MsgspecError, ValueError) as exc:
            text = f"sent no valid message about its state: {exc}"
            raise ProtocolError(rank, text[:300]) from None
    return found
