"""``AgentHello``, the first message on a connection between agents, both ways."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated

import msgspec

from ringleader.errors import ProtocolError
from ringleader.ids import Incarnation, NodeId
from ringleader.node.protocol import framing

MAX_HELLO_BYTES = 2048
"""Largest frame accepted from a peer whose hello has not been read."""

PROTOCOL = 6
"""Version of the messages in this package. Agents refuse peers of another version."""

_PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e]*\Z"
"""Text from other machines is shown in terminals: no control characters."""

Text = Annotated[str, msgspec.Meta(max_length=256, pattern=_PRINTABLE)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class Purpose(StrEnum):
    """Purpose of a connection between agents."""

    CONTROL = "control"
    """Membership messages; stays open."""
    PROBE = "probe"
    """One measurement of the link."""
    STORE = "store"
    """A tunnel to the TCPStore of a round."""
    STATUS = "status"
    """One snapshot."""
    RUN = "run"
    """As CONTROL, between the processes of one elastic training run."""
    STATE = "state"
    """A process follows an elastic run before it becomes a member."""
    ADDRESSES = "addresses"
    """Where another node can be dialled."""


class AgentHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Introduction of one agent to another."""

    protocol: int
    version: Text
    purpose: Text
    """A ``Purpose``, or that of a service (``agent.services``); a peer that does not
    know it refuses the connection."""
    node: Annotated[NodeId, msgspec.Meta(pattern=r"^[a-z2-7]{52}\Z")]
    incarnation: Annotated[Incarnation, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    started_ms: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    name: Text
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    addresses: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=16)
    ] = []
    """Addresses of the sender, the best first."""
    clock_s: Seconds
    """Wall clock of the sender, only for reporting clock skew; never NaN."""
    monotonic_s: Seconds = 0.0
    """Monotonic clock of the sender: start times of jobs are compared with it."""
    subject: Text = ""
    """For ``Purpose.STORE``: id of the round. For ``Purpose.RUN`` and ``STATE``: id of
    the run. For ``Purpose.ADDRESSES``: the node. For a service: what it likes."""
    refusal: Text = ""
    """In a reply: why the connection is refused."""


_DECODER = msgspec.msgpack.Decoder(AgentHello)


def decode_hello(body: bytes, who: str) -> AgentHello:
    """Decode a hello of any protocol version; raises ``ProtocolError``."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(who, f"sent an invalid hello ({exc})") from exc


async def read_hello(reader: asyncio.StreamReader, who: str) -> AgentHello:
    """Read a hello of our protocol version; raises ``ProtocolError`` for any other."""
    hello = decode_hello(await framing.read(reader, who, MAX_HELLO_BYTES), who)
    if hello.protocol != PROTOCOL:
        text = (
            f"runs ringleader {hello.version}, which speaks protocol {hello.protocol}; "
            f"we speak {PROTOCOL}: upgrade one of them"
        )
        raise ProtocolError(who, text)
    return hello
