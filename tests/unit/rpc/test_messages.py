"""The bytes of messages: nothing that arrives is believed before it is checked."""

from __future__ import annotations

import contextlib
import random
import struct
from collections import deque
from functools import partial
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.errors import ConfigError, PeerLost, ProtocolError
from ringleader.rpc import channel as channel_module
from ringleader.rpc import messages, registry
from ringleader.rpc.channel import Channel, Outgoing
from ringleader.rpc.messages import (
    Call,
    Failure,
    Fetch,
    Hello,
    Reference,
    Result,
    TensorSpec,
    Value,
)
from ringleader.settings.rpc import rpc_max_bytes
from ringleader.transport.link import Link
from ringleader.transport.memory_link import memory_link_pair

MAX_BYTES = 1 << 20
REFERENCE = Reference(0, 1, 2, 3)
VALUE = Value(
    msgspec.Raw(msgspec.msgpack.encode([0, 1])),
    (TensorSpec("float32", (2, 3)), TensorSpec("bool", ())),
    (REFERENCE,),
    5,
)
EXAMPLES: list[messages.Message] = [
    Hello("worker0", MAX_BYTES),
    Call(1, "function", 1.5, VALUE, REFERENCE),
    Fetch(2, REFERENCE, 0.5),
    Result(3, VALUE),
    Failure(4, "text", "ValueError", "trace"),
    messages.Add(REFERENCE),
    messages.Added(REFERENCE),
    messages.Drop(REFERENCE),
    messages.Confirm(5),
    messages.Done(),
    messages.Ended(),
]
SIZES = {"float32": 4, "bool": 1}


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_message_comes_back(message: messages.Message) -> None:
    data = messages.encode(message, 25)
    size = messages.HEAD.size
    assert messages.decode_head(data[:size], MAX_BYTES, 1) == (len(data) - size, 25)
    found = messages.decode_body(data[size:], 1)
    assert messages.encode(found, 25) == data
    if message.tensors:
        messages.check_tensors(found.tensors, SIZES, 25, 1)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        messages.decode_body(data, 1)
    except ProtocolError:
        return


def test_damaged_messages_are_messages_or_protocol_errors() -> None:
    """Every byte of every message changed, cut off or doubled, seeded."""
    rng = random.Random(17)
    for message in EXAMPLES:
        body = messages.encode(message)[messages.HEAD.size :]
        for position in range(len(body)):
            for damaged in (
                body[:position] + bytes([rng.randrange(256)]) + body[position + 1 :],
                body[:position],
                body[:position] + body,
            ):
                with contextlib.suppress(ProtocolError):
                    found = messages.decode_body(damaged, 3)
                    messages.check_tensors(found.tensors, SIZES, 25, 3)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (struct.pack("<4sIQ", b"HTTP", 5, 0), "begins with b'HTTP'"),
        (struct.pack("<4sIQ", b"RPC1", 0, 0), "a message of 0 bytes"),
        (struct.pack("<4sIQ", b"RPC1", MAX_BYTES + 1, 0), "accepted are 1048576"),
        (struct.pack("<4sIQ", b"RPC1", 1, MAX_BYTES), "accepted are 1048576"),
        (struct.pack("<4sIQ", b"RPC1", 1, 2**64 - 1), "accepted are 1048576"),
    ],
)
def test_lengths_are_checked_before_memory_is_taken(head: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        messages.decode_head(head, MAX_BYTES, 1)


@pytest.mark.parametrize(
    ("spec", "num_bytes"),
    [
        (TensorSpec("float32", (3,)), 13),
        (TensorSpec("float32", (3,)), 0),
        (TensorSpec("object", (3,)), 24),
        (TensorSpec("float32", (-1, -3)), 12),
        (TensorSpec("float32", (0, 1 << 61)), 0),
        (TensorSpec("float32", (1,) * 65), 4),
        (TensorSpec("float32", (1 << 62,) * 300_000), 4),  # their product takes hours
        (TensorSpec("float32", (1 << 40, 1 << 40)), 4 << 80),
    ],
)
def test_shapes_are_checked_before_memory_is_taken(
    spec: TensorSpec, num_bytes: int
) -> None:
    with pytest.raises(ProtocolError, match="announced"):
        messages.check_tensors((spec,), SIZES, num_bytes, 1)


def test_a_channel_delivers_what_came_before_the_end_and_then_names_the_peer() -> None:
    """FT-6: a message of any length is received, in pieces of any length."""
    left, right = memory_link_pair()
    channel = Channel(0, right, MAX_BYTES)
    data = messages.encode(EXAMPLES[4]) + messages.encode(Failure(1, "x" * 100_000))
    found = []
    for start in range(0, len(data), 7777):
        assert left.try_send(memoryview(data)[start : start + 7777])
        found += channel.read()
    left.close()
    assert [m.message.id for m in found] == [4, 1]  # type: ignore[union-attr]
    with pytest.raises(PeerLost) as caught:
        channel.read()
    assert caught.value.peer == 0
    channel.close()


def test_a_channel_forgets_nothing_when_its_turn_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has read is complete, or it asks for another turn before it sleeps."""
    data = messages.encode(EXAMPLES[4])
    for turn in range(1, 3 * len(data)):
        monkeypatch.setattr(channel_module, "TURN_BYTES", turn)
        left, right = memory_link_pair()
        channel = Channel(0, right, MAX_BYTES)
        left.try_send(memoryview(3 * data))
        found = channel.read()
        while channel.arm() is None:
            found += channel.read()
        assert len(found) == 3, turn
        channel.close()
        left.close()


def test_a_channel_stops_at_bytes_that_are_no_message() -> None:
    left, right = memory_link_pair()
    channel = Channel(0, right, MAX_BYTES)
    left.try_send(memoryview(messages.encode(EXAMPLES[4]) + b"GET / HTTP/1.1\r\n\r\n"))
    assert len(channel.read()) == 1
    assert channel.arm() is None, "it is asked again at once"
    for _ in range(2):
        with pytest.raises(ProtocolError, match="begins with b'GET '"):
            channel.read()
    channel.close()
    left.close()


def test_a_link_that_cannot_wait_loses_its_peer_only() -> None:
    """As shared memory does in which the peer wrote nonsense."""

    class Broken:
        peer, kind = 1, "broken"

        def arm(self, *, sending: bool, receiving: bool) -> None:
            raise ProtocolError(1, "wrote 9 bytes into one slot")

    channel = Channel(1, cast("Link", Broken()), MAX_BYTES)
    assert channel.arm() is None
    with pytest.raises(ProtocolError, match="rank 1: wrote 9 bytes"):
        channel.read()


def test_a_message_that_nobody_needs_any_more_is_not_sent() -> None:
    left, right = memory_link_pair()
    channel = Channel(1, left, MAX_BYTES)
    told: list[str] = []
    filler = memoryview(bytes(64 << 20))
    channel.send(Outgoing(deque([filler])))
    for name, is_void in [("kept", False), ("void", True)]:
        data = memoryview(messages.encode(Failure(1, name)))
        outgoing = Outgoing(
            deque([data]), partial(bool, is_void), partial(told.append, name)
        )
        assert channel.send(outgoing), "the link is full"
    channel.write()
    assert told == ["void"]
    channel.close()
    assert told == ["void", "kept"]
    right.close()


def test_the_limit_is_a_setting() -> None:
    assert rpc_max_bytes({}) == 1 << 30
    assert rpc_max_bytes({"RINGLEADER_RPC_MAX_BYTES": "70000"}) == 70000
    for wrong in ("7", "many", "-1"):
        with pytest.raises(ConfigError, match="RINGLEADER_RPC_MAX_BYTES"):
            rpc_max_bytes({"RINGLEADER_RPC_MAX_BYTES": wrong})


def test_functions_are_registered_by_name_and_only_once() -> None:
    def first() -> None: ...

    def second() -> None: ...

    assert registry.register(first, name="test_messages.f") is first
    assert registry.register(name="test_messages.f")(first) is first
    assert registry.name_of(first) == "test_messages.f"
    assert registry.name_of("anything") == "anything"
    with pytest.raises(ConfigError, match="pass another name="):
        registry.register(second, name="test_messages.f")
    with pytest.raises(ConfigError, match="decorate it with @rpc"):
        registry.name_of(second)
    with pytest.raises(ConfigError, match="nor a dataclass"):
        registry.register(dict)
    with pytest.raises(ConfigError, match="not a function"):
        registry.register(5, name="five")  # type: ignore[call-overload]
