"""StepStatus: what a frozen member reports, and its bytes: typed and bounded.

It travels as the payload of a membership view. ``read_statuses`` takes all of them out
of a committed view; ``decide.decide`` turns them into the plan of that view.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from ringleader.errors import ProtocolError
from ringleader.membership.member import (
    MAX_PAYLOAD_BYTES,
    NO_VIEW,
    Member,
    Members,
    View,
    ViewId,
)
from ringleader.membership.steps.attempt import Attempt, Chain, LineageName, Version

MAX_BUCKETS: Final = 4096
"""Buckets of a result, the sideband included: 100 GB of gradients at 25 MB each."""

MAX_QUANTA: Final = 4096
"""Quanta of one step that one member computes."""

MAX_PROMISES: Final = 64
"""Views promised since the last installed one. A member that has promised more drops
the oldest and says so."""

MAX_LEFT: Final = 16
"""Views before the installed one that a member remembers."""

MAX_ENDED: Final = 32
MAX_DATA_BYTES: Final = 8192


class Promise(NamedTuple):
    """A view that a member was frozen for, and that it never installed."""

    id: ViewId
    members: Members


class Ended(NamedTuple):
    """A life that is proven to have ended.

    The proof includes the latest view that it can have promised: a member that had
    promised nothing after the last view of its lineage cannot have helped to form
    another one (see ``lineage.py``).
    """

    member: Member
    promised: ViewId


class HeldResult(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """The final buckets of one attempt that a member has."""

    attempt: Attempt
    num_buckets: Annotated[int, Meta(ge=1, le=MAX_BUCKETS)]
    bitmap: Annotated[bytes, Meta(max_length=MAX_BUCKETS // 8)]
    """Bit k, counted from the lowest bit of the first byte: bucket k is there. Bucket 0
    is the sideband."""

    @property
    def buckets(self) -> int:
        """The bitmap as an integer: bit k is bucket k."""
        return int.from_bytes(self.bitmap, "little")

    @property
    def is_complete(self) -> bool:
        """True if all buckets are there."""
        return self.buckets == (1 << self.num_buckets) - 1


def held_result(attempt: Attempt, num_buckets: int, buckets: int) -> HeldResult:
    """Return the HeldResult with these buckets (bit k of ``buckets``)."""
    size = (num_buckets + 7) // 8
    return HeldResult(attempt, num_buckets, buckets.to_bytes(size, "little"))


class StepStatus(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True
):
    """What a member that is frozen for a view has, has done and has promised."""

    answers: ViewId
    """The view it is frozen for. A view whose payload answers another one decides
    nothing."""

    lineage: LineageName = ""
    """Name of its history; empty if it has no state, or one that was not delivered here
    (read from a checkpoint, or copied while it was no member)."""

    view: ViewId = NO_VIEW
    """The view it has installed last."""

    view_members: Members = ()
    promised: Annotated[tuple[Promise, ...], Meta(max_length=MAX_PROMISES)] = ()
    """Views promised after ``view``, oldest first, without ``answers``."""

    left: Annotated[tuple[Promise, ...], Meta(max_length=MAX_LEFT)] = ()
    """Views installed or promised before ``view``, oldest first."""

    since: ViewId = NO_VIEW
    """It remembers every promise of a view after this one, unless that is in force
    nowhere."""

    paused: Annotated[tuple[ViewId, ...], Meta(max_length=MAX_LEFT)] = ()
    """Views that it has installed and whose plan was to pause: in force nowhere."""

    is_torn: bool = False
    """True if it has no complete state: it joins and has yet to get one, or it lost the
    source while it copied, and had no memory for a second state."""

    version: Version = 0
    """Steps delivered."""

    chain: Chain = b""
    chain_before: Chain = b""
    """The chain at ``version - 1``; empty at version 0."""

    last: Attempt | None = None
    """The attempt that made ``version``; None at version 0."""

    samples: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    """Samples delivered in this history."""

    held: Annotated[tuple[HeldResult, ...], Meta(max_length=2)] = ()
    """The result of ``version``, and what is there of the next one."""

    quanta: Annotated[
        tuple[Annotated[int, Meta(ge=0, lt=1 << 16)], ...], Meta(max_length=MAX_QUANTA)
    ] = ()
    """Quanta of step ``version + 1`` that are assigned to it, done or not, rising."""

    quanta_view: ViewId = NO_VIEW
    """The view in which they were assigned."""

    ended: Annotated[tuple[Ended, ...], Meta(max_length=MAX_ENDED)] = ()
    data: Annotated[bytes, Meta(max_length=MAX_DATA_BYTES)] = b""
    """Not looked at here: endpoint, layout digest, fingerprint."""

    def held_of(self, attempt: Attempt | None) -> HeldResult | None:
        """Return what is there of ``attempt``; None if nothing is."""
        return next((h for h in self.held if h.attempt == attempt), None)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StepStatus)


def encode_status(status: StepStatus) -> bytes:
    """Return the bytes of a status."""
    return _ENCODER.encode(status)


def decode_status(data: bytes, sender: Member) -> StepStatus:
    """Return the status in ``data``, which ``sender`` reported.

    Raises ProtocolError if it is malformed, oversized or contradicts itself.
    """
    if len(data) > MAX_PAYLOAD_BYTES:
        text = f"sent {len(data)} bytes as step status; limit {MAX_PAYLOAD_BYTES}"
        raise ProtocolError(str(sender), text)
    try:
        status = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ProtocolError(
            str(sender), f"sent a malformed step status: {exc}"
        ) from exc
    fault = _fault(status, sender)
    if fault:
        text = f"sent a step status that contradicts itself: {fault}"
        raise ProtocolError(str(sender), text)
    return status


def read_statuses(view: View) -> dict[Member, StepStatus]:
    """Return the status of every member of a view, in ring order.

    A member whose payload cannot be read counts as one without state: it takes the
    state of the others. All members read the same bytes, so all agree on that.
    """
    statuses = {}
    for member, payload in zip(view.members, view.payloads, strict=True):
        try:
            statuses[member] = decode_status(payload, member)
        except ProtocolError:
            statuses[member] = StepStatus(answers=view.id, since=view.id, is_torn=True)
    return statuses


def _fault(status: StepStatus, sender: Member) -> str | None:
    return _fault_of_views(status, sender) or _fault_of_history(status)


def _fault_of_views(status: StepStatus, sender: Member) -> str | None:
    previous = NO_VIEW
    is_gap = status.since > status.view
    if status.left and (is_gap or status.left[0].id <= status.since):
        return f"it remembers only what came after view {status.since}"
    views = (*status.left, Promise(status.view, status.view_members), *status.promised)
    for promise in views:
        if promise.id == NO_VIEW:
            continue
        if sender not in promise.members:
            return f"it promised view {promise.id} and is no member of it"
        if promise.id <= previous:
            return f"it promised view {promise.id} after {previous}"
        previous = promise.id
    if status.answers <= previous:
        return f"it answers view {status.answers} after {previous}"
    return None


def _fault_of_history(status: StepStatus) -> str | None:
    if (status.last.version if status.last else 0) != status.version:
        return f"version {status.version} was made by {status.last}"
    if status.is_torn and status.chain:
        return "it has a history, and only a part of the state"
    if (status.version > 0 or status.lineage != "") and not status.chain:
        return "it has a history without a chain"
    if any(a >= b for a, b in zip(status.quanta, status.quanta[1:], strict=False)):
        return "its quanta are not in rising order"
    return _fault_of_held(status)


def _fault_of_held(status: StepStatus) -> str | None:
    for held in status.held:
        if held.attempt != status.last and held.attempt.version != status.version + 1:
            return f"it is at version {status.version} and holds {held.attempt}"
        if held.buckets >> held.num_buckets:
            return f"it holds more than {held.num_buckets} buckets"
    return None
