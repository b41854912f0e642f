"""What a node tells the others about itself when a view is made: its seat at the table.

Seats ride on the views as opaque payloads. Everybody sees the same seats, so what
follows from them (who trains with whom, in which order) needs no further agreement.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ringleader.errors import ProtocolError
from ringleader.ids import NodeId
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import NodeProfile, Text

Name = Annotated[
    str,
    msgspec.Meta(max_length=64, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e]*\Z"),
]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=64)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


Job = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
"""A name that can also be a part of a file's."""


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be the same on every machine of a job, by name."""

    script: Name = ""
    """A hash of the program; empty when it should not be compared."""
    torch: Name = ""
    """Major version."""
    ringleader: Name = ""
    """Version of the wire format and of this protocol."""
    compress: Name = ""
    """The scheme for gradients."""


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process of this node wants to train, or does so in ``round``."""

    job: Job
    number: Annotated[str, msgspec.Meta(max_length=32)]
    """Random, so that a second request is not taken for the first."""
    min_nodes: Count
    max_nodes: Count
    wait_s: Seconds
    """How long to wait for more than ``min_nodes``, once they are here."""
    facts: Facts = Facts()
    again: bool = False
    """It was in a round of this job before."""
    round: Name = ""
    """The round it trains in; empty while it waits for one."""


class Ended(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node says of a job before it leaves: it need not be waited for."""

    job: Job
    round: Name
    ok: bool


class Seat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node, as it describes itself."""

    name: Text
    host: Name
    """Equal on nodes that can share memory."""
    addresses: Annotated[list[Name], msgspec.Meta(max_length=16)]
    port: Port
    profile: NodeProfile
    links: Annotated[dict[NodeId, LinkProfile], msgspec.Meta(max_length=64)] = {}
    tickets: Annotated[list[Ticket], msgspec.Meta(max_length=16)] = []
    ended: Annotated[list[Ended], msgspec.Meta(max_length=16)] = []
    go: Annotated[list[Job], msgspec.Meta(max_length=64)] = []
    """Said by a leader: these jobs need not wait for more machines."""

    def ticket(self, job: str) -> Ticket | None:
        """Our ticket for ``job``, if we have one."""
        return next((t for t in self.tickets if t.job == job), None)


MAX_SEAT_BYTES = 32 << 10
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Seat)


def encode(seat: Seat) -> bytes:
    """The bytes that travel with the view."""
    return _ENCODER.encode(seat)


def decode(data: bytes, node: NodeId) -> Seat:
    """The seat of ``node``; ProtocolError naming it when the bytes make no sense."""
    if len(data) > MAX_SEAT_BYTES:
        raise ProtocolError(node, f"seat of {len(data)} bytes, limit {MAX_SEAT_BYTES}")
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(node, f"seat: {exc}") from exc
