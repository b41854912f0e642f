"""What a member tells about itself in its step status, beside the protocol."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ringleader.decoding import from_msgpack
from ringleader.errors import ProtocolError
from ringleader.membership.member import Member
from ringleader.membership.steps.status import MAX_DATA_BYTES


class MemberData(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """Opaque to the step protocol."""

    endpoint: Annotated[bytes, Meta(max_length=4096)] = b""
    """Where its groups are reached."""
    name: Annotated[str, Meta(max_length=255)] = ""
    """Name of its machine, for people."""
    layout: Annotated[
        dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=200)]],
        Meta(max_length=16),
    ] = {}
    """What must be equal on all members, by name: digests and numbers."""
    fingerprint: Annotated[bytes, Meta(max_length=64)] = b""
    """Members with equal ones compute equal bits."""


def encode_data(data: MemberData) -> bytes:
    """Return the bytes of ``data``."""
    return msgspec.msgpack.encode(data)


def decode_data(data: bytes, member: Member) -> MemberData:
    """Return what ``member`` told; raises ProtocolError if it is malformed."""
    if len(data) > MAX_DATA_BYTES:
        raise ProtocolError(str(member), f"sent {len(data)} bytes about itself")
    try:
        return from_msgpack(data, MemberData)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        text = f"sent malformed data about itself: {exc}"
        raise ProtocolError(str(member), text) from exc


def layout_difference(mine: MemberData, theirs: MemberData) -> str:
    """Return what differs between two members' layouts; empty if nothing does."""
    for name in sorted({*mine.layout, *theirs.layout}):
        here, there = mine.layout.get(name), theirs.layout.get(name)
        if here != there:
            return f"{name} ({here} here, {there} there)"
    return ""
