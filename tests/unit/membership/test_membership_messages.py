"""Membership messages: they come back as they went, and nothing else gets in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import ProtocolError
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import (
    MAX_MEMBERS,
    MAX_PAYLOAD_BYTES,
    NO_VIEW,
    Member,
    View,
    ViewId,
)
from ringleader.membership.messages import (
    MAX_MESSAGE_BYTES,
    Ack,
    Commit,
    Goodbye,
    Heartbeat,
    Message,
    Propose,
    Refuse,
    Report,
    Status,
    decode,
    encode,
)
from ringleader.simulation.membership.seeded_run import simulate
from ringleader.simulation.membership.simulated_cluster import SimulatedCluster


def member(index: int, started_ms: int = 0) -> Member:
    letter = "abcdefghijklmnopqrstuvwxyz234567"
    name = letter[index % 32] + letter[index // 32]
    return Member(started_ms, NodeId(name * 26), Incarnation(f"{index:016x}"))


ADA, BOB, CYD = member(1, -5), member(2), member(3, 10**12)
NAME = ViewId(7, ADA.node, ADA.incarnation)
VIEW = View(NAME, (ADA, CYD, BOB), (b"a", b"", b"c" * 100))
REPORT = Report(
    view=NO_VIEW,
    promised=NAME,
    num_members=0,
    prefers=ADA,
    hears=(BOB, CYD),
    invites=(BOB,),
    suspects=((CYD, 3),),
    clones=((BOB, CYD),),
    refreshes=2,
)
MESSAGES: list[Message] = [
    Heartbeat(5, 1_000_000, 2, 3, 1, REPORT),
    Propose(NAME, (ADA, BOB)),
    Status(NAME, b"state", 1),
    Commit(VIEW),
    Ack(NAME),
    Refuse(NAME, ViewId(9, BOB.node, BOB.incarnation)),
    Goodbye(),
]


def kind(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", MESSAGES, ids=kind)
def test_a_message_comes_back_as_it_went(message: Message) -> None:
    assert decode(encode(message), ADA) == message


def test_every_message_of_some_seeds_comes_back_as_it_went() -> None:
    kinds = set()

    def check(sender: Member, message: Message) -> None:
        kinds.add(kind(message))
        assert decode(encode(message), sender) == message

    def listen(cluster: SimulatedCluster) -> None:
        cluster.on_message = check

    for seed in range(12):
        simulate(seed, on_cluster=listen)
    assert kinds >= {kind(message) for message in MESSAGES} - {"Refuse"}  # it is rare


def test_the_largest_commit_fits_and_nothing_larger_is_decoded() -> None:
    members = tuple(sorted(member(i, 1 << 62) for i in range(MAX_MEMBERS)))
    name = ViewId(1 << 53, members[0].node, members[0].incarnation)
    full = Commit(View(name, members, (b"x" * MAX_PAYLOAD_BYTES,) * MAX_MEMBERS))
    data = encode(full)
    assert len(data) <= MAX_MESSAGE_BYTES
    assert decode(data, members[0]) == full
    with pytest.raises(ProtocolError, match="limit"):
        decode(bytes(MAX_MESSAGE_BYTES + 1), ADA)


def raw(*parts: object) -> bytes:
    return msgspec.msgpack.encode(parts)


BAD_MEMBER = ["0", ADA.node, ADA.incarnation]
BAD = {
    "nothing": b"",
    "not a list": msgspec.msgpack.encode({"type": "bye"}),
    "unknown kind": raw("hello"),
    "no kind": raw(1, 2),
    "too few fields": raw("ack"),
    "too many fields": raw("ack", NAME, 1),
    "trailing bytes": encode(Ack(NAME)) + b"\0",
    "negative counter": raw("ack", [-1, ADA.node, ADA.incarnation]),
    "giant counter": raw("ack", [1 << 60, ADA.node, ADA.incarnation]),
    "boolean counter": raw("ack", [True, ADA.node, ADA.incarnation]),
    "short node id": raw("ack", [1, ADA.node[:51], ADA.incarnation]),
    "node id with a line": raw("ack", [1, ADA.node[:51] + "\n", ADA.incarnation]),
    "node id and a line": raw("ack", [1, ADA.node + "\n", ADA.incarnation]),
    "incarnation in capitals": raw("ack", [1, ADA.node, "A" * 16]),
    "member of strings": raw("propose", NAME, [BAD_MEMBER]),
    "long payload": raw("status", NAME, bytes(MAX_PAYLOAD_BYTES + 1), 0),
    "text payload": raw("status", NAME, "text", 0),
    "many members": raw("propose", NAME, [ADA] * (MAX_MEMBERS + 1)),
    "length that lies": b"\x93\xa7propose"
    + encode(Ack(NAME))[5:]
    + b"\xdd\xff\xff\xff\xff",
    "deep nesting": b"\x91" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_bytes_are_a_protocol_error(name: str) -> None:
    with pytest.raises(ProtocolError, match=str(ADA)):
        decode(BAD[name], ADA)


CONTRADICTIONS: dict[str, Message] = {
    "another node's view": Propose(ViewId(7, BOB.node, BOB.incarnation), (ADA, BOB)),
    "another life's view": Propose(ViewId(7, ADA.node, BOB.incarnation), (ADA, BOB)),
    "leader not a member": Propose(NAME, (BOB, CYD)),
    "node twice": Propose(NAME, (ADA, BOB, BOB._replace(started_ms=4))),
    "payload missing": Commit(View(NAME, (ADA, BOB), (b"",))),
    "commit in another's name": Commit(
        View(ViewId(7, BOB.node, BOB.incarnation), (ADA, BOB), (b"", b""))
    ),
    "hears a node twice": Heartbeat(
        1, 1, 0, 0, 0, msgspec.structs.replace(REPORT, hears=(BOB, BOB))
    ),
    "installed and not promised": Heartbeat(
        1, 1, 0, 0, 0, msgspec.structs.replace(REPORT, view=NAME, promised=NO_VIEW)
    ),
    "invites and follows": Heartbeat(
        1, 1, 0, 0, 0, msgspec.structs.replace(REPORT, prefers=BOB)
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_a_protocol_error(name: str) -> None:
    with pytest.raises(ProtocolError, match="contradicts itself"):
        decode(encode(CONTRADICTIONS[name]), ADA)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_a_protocol_error_or_a_message(data: bytes) -> None:
    try:
        decode(data, ADA)
    except ProtocolError:
        return


@given(
    st.sampled_from(MESSAGES),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    st.integers(0, 2000),
)
@settings(max_examples=500, deadline=None)
def test_damaged_messages_are_a_protocol_error_or_a_message(
    message: Message, flips: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(encode(message))
    for place, value in flips:
        data[place % len(data)] = value
    try:
        decode(data[: length or None], ADA)
    except ProtocolError:
        return


def test_the_bytes_of_version_one_are_pinned() -> None:
    short = Member(1, NodeId("a" * 52), Incarnation("0" * 16))
    name = ViewId(2, short.node, short.incarnation)
    body = "d934" + "61" * 52 + "b0" + "30" * 16
    assert encode(Ack(name)).hex() == "92a361636b" + "9302" + body
    proposal = "93a770726f706f7365" + "9302" + body + "91" + "9301" + body
    assert encode(Propose(name, (short,))).hex() == proposal
    assert encode(Goodbye()).hex() == "91a3627965"
