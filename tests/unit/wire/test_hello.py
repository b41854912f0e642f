"""Hello and answer: pinned bytes, and nothing but ProtocolError for others."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.errors import ProtocolError
from ringleader.wire import hello as wire
from ringleader.wire.hello import Hello, Purpose, Status
from ringleader.wire.hello import HelloReply as Reply

GOLDEN = Path(__file__).parent / "golden"
PEER = "192.168.1.7:4711"

HELLO = Hello(
    purpose=Purpose.BULK,
    group=0x1122334455667788,
    from_rank=3,
    to_rank=1,
    size=5,
    incarnation=bytes(range(16)),
    host=bytes(range(32, 48)),
    namespace=bytes(range(64, 80)),
    stripe=2,
    num_stripes=4,
)
ANSWER = Reply(
    status=Status.OK,
    rank=1,
    incarnation=bytes(range(16, 32)),
    host=bytes(range(32, 48)),
    unix_name=b"@rl-0123456789abcdef0123",
)
REFUSAL = Reply(
    status=Status.DUPLICATE,
    rank=0,
    incarnation=bytes(16),
    host=bytes(16),
    unix_name=b"",
)

# The tables of the module docstring, once more: offset, bytes.
HELLO_FIELDS = [
    (0, b"RINGLDR\0"),
    (8, b"\1\0"),
    (10, b"\2"),
    (11, b"\0"),
    (12, b"\2\0"),
    (14, b"\4\0"),
    (16, bytes.fromhex("8877665544332211")),
    (24, b"\3\0\0\0"),
    (28, b"\1\0\0\0"),
    (32, b"\5\0\0\0"),
    (36, bytes(4)),
    (40, bytes(range(64, 80))),
    (56, bytes(range(16))),
    (72, bytes(range(32, 48))),
    (88, bytes(100)),
]
ANSWER_FIELDS = [
    (0, b"RINGLDR\1"),
    (8, b"\1\0"),
    (10, b"\0"),
    (11, b"\0"),
    (12, b"\1\0\0\0"),
    (16, bytes(range(16, 32))),
    (32, bytes(range(32, 48))),
    (48, b"@rl-0123456789abcdef0123" + bytes(8)),
    (80, bytes(44)),
]


def _encode(value: Hello | Reply) -> bytes:
    if isinstance(value, Hello):
        return wire.encode_hello(value)
    return wire.encode_reply(value)


def _decode(
    value: Hello | Reply,
) -> Callable[[bytes, int | str], Hello | Reply]:
    return wire.decode_hello if isinstance(value, Hello) else wire.decode_reply


def altered(value: Hello | Reply, at: int, new: bytes, *, seal: bool = True) -> bytes:
    """``value`` with some bytes changed, and a checksum that says it is in order."""
    data = bytearray(_encode(value))
    data[at : at + len(new)] = new
    if seal:
        data[-4:] = struct.pack("<I", zlib.crc32(bytes(data[:-4])))
    return bytes(data)


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    """Any hello that makes sense."""
    size = draw(st.integers(2, wire.MAX_SIZE))
    source = draw(st.integers(0, size - 1))
    to = draw(st.integers(0, size - 1).filter(lambda rank: rank != source))
    stripes = draw(st.integers(1, wire.MAX_STRIPES))
    token = st.binary(min_size=16, max_size=16)
    return Hello(
        purpose=draw(st.sampled_from(Purpose)),
        group=draw(st.integers(0, 2**64 - 1)),
        from_rank=source,
        to_rank=to,
        size=size,
        incarnation=draw(token),
        host=draw(token),
        namespace=draw(token),
        stripe=draw(st.integers(0, stripes - 1)),
        num_stripes=stripes,
    )


answers = st.builds(
    Reply,
    status=st.sampled_from(Status),
    rank=st.integers(0, wire.MAX_SIZE - 1),
    incarnation=st.binary(min_size=16, max_size=16),
    host=st.binary(min_size=16, max_size=16),
    unix_name=st.text(
        st.characters(min_codepoint=1, max_codepoint=127), max_size=32
    ).map(str.encode),
)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hello", HELLO), ("answer", ANSWER), ("answer-refusal", REFUSAL)],
)
def test_the_bytes_of_version_1_are_pinned(name: str, value: Hello | Reply) -> None:
    pinned = bytes.fromhex((GOLDEN / f"v1-{name}.hex").read_text())
    assert _encode(value) == pinned
    assert _decode(value)(pinned, PEER) == value


@pytest.mark.parametrize(
    ("value", "fields", "length"),
    [(HELLO, HELLO_FIELDS, 192), (ANSWER, ANSWER_FIELDS, 128)],
)
def test_every_field_lies_where_the_table_says(
    value: Hello | Reply, fields: list[tuple[int, bytes]], length: int
) -> None:
    data = _encode(value)
    for offset, content in fields:
        assert data[offset : offset + len(content)] == content
    assert data[-4:] == struct.pack("<I", zlib.crc32(data[:-4]))
    assert sum(len(content) for _, content in fields) + 4 == len(data) == length


@given(hellos() | answers)
def test_what_is_encoded_is_decoded(value: Hello | Reply) -> None:
    assert _decode(value)(_encode(value), PEER) == value


@pytest.mark.parametrize("value", [HELLO, ANSWER])
def test_every_other_length_is_refused(value: Hello | Reply) -> None:
    whole = _encode(value)
    for length in [*range(len(whole)), len(whole) + 1, 2 * len(whole)]:
        data = (whole * 2)[:length]
        with pytest.raises(ProtocolError, match=f"{length} bytes instead of") as caught:
            _decode(value)(data, PEER)
        assert caught.value.peer == PEER


@pytest.mark.parametrize("value", [HELLO, ANSWER])
def test_a_flipped_bit_anywhere_is_refused(value: Hello | Reply) -> None:
    whole = _encode(value)
    for at in range(len(whole)):
        data = altered(value, at, bytes([whole[at] ^ 0x10]), seal=False)
        with pytest.raises(ProtocolError) as caught:
            _decode(value)(data, PEER)
        assert caught.value.peer == PEER


def test_hello_and_answer_are_not_taken_for_each_other() -> None:
    longer = _encode(ANSWER) + bytes(64)
    with pytest.raises(ProtocolError, match="not a Ringleader peer"):
        wire.decode_hello(longer, PEER)
    with pytest.raises(ProtocolError, match="not a Ringleader peer"):
        wire.decode_reply(_encode(HELLO)[:128], PEER)


@pytest.mark.parametrize("value", [HELLO, ANSWER])
@pytest.mark.parametrize("version", [0, 2, 65535])
def test_another_version_is_named_before_anything_else(
    value: Hello | Reply, version: int
) -> None:
    new = struct.pack("<H", version)
    data = altered(value, 8, new, seal=False)
    with pytest.raises(ProtocolError, match=f"version {version}, not 1"):
        _decode(value)(data, PEER)


@pytest.mark.parametrize("value", [HELLO, ANSWER])
def test_reserved_bytes_must_be_zero(value: Hello | Reply) -> None:
    for at in [11, *([*range(36, 40), *range(88, 188)])]:
        if isinstance(value, Reply) and at != 11:
            at = 80 + at % 44
        data = altered(value, at, b"\1")
        with pytest.raises(ProtocolError, match="reserved bytes"):
            _decode(value)(data, PEER)


@pytest.mark.parametrize("purpose", [0, 4, 255])
def test_an_unknown_purpose_is_refused(purpose: int) -> None:
    with pytest.raises(ProtocolError, match=f"purpose {purpose} is unknown"):
        wire.decode_hello(altered(HELLO, 10, bytes([purpose])), PEER)


@pytest.mark.parametrize("status", [8, 255])
def test_an_unknown_status_is_refused(status: int) -> None:
    with pytest.raises(ProtocolError, match=f"status {status} is unknown"):
        wire.decode_reply(altered(ANSWER, 10, bytes([status])), PEER)


@pytest.mark.parametrize(
    ("source", "to", "size"),
    [
        (0, 0, 0),
        (0, 0, 1),
        (1, 1, 2),
        (2, 0, 2),
        (0, 2, 2),
        (0xFFFFFFFF, 0, 2),
        (0, 1, 65537),
        (0, 1, 0xFFFFFFFF),
    ],
)
def test_impossible_ranks_are_refused(source: int, to: int, size: int) -> None:
    data = altered(HELLO, 24, struct.pack("<III", source, to, size))
    with pytest.raises(
        ProtocolError, match=f"invalid ranks {source} -> {to} of {size}"
    ):
        wire.decode_hello(data, PEER)


@pytest.mark.parametrize(("stripe", "stripes"), [(0, 0), (1, 1), (4, 4), (0, 65)])
def test_impossible_stripes_are_refused(stripe: int, stripes: int) -> None:
    data = altered(HELLO, 12, struct.pack("<HH", stripe, stripes))
    with pytest.raises(ProtocolError, match=f"stripe {stripe} of {stripes}"):
        wire.decode_hello(data, PEER)


@pytest.mark.parametrize("door", [b"\xff\xfe", b"a\0b", b"\0name", b"@x\0\0y"])
def test_a_door_that_no_listener_would_have_is_refused(door: bytes) -> None:
    with pytest.raises(ProtocolError, match="invalid rank"):
        wire.decode_reply(altered(ANSWER, 48, door.ljust(32, b"\0")), PEER)


@pytest.mark.parametrize("rank", [65536, 0xFFFFFFFF])
def test_an_answer_of_an_impossible_rank_is_refused(rank: int) -> None:
    with pytest.raises(ProtocolError, match="invalid rank"):
        wire.decode_reply(altered(ANSWER, 12, struct.pack("<I", rank)), PEER)


@given(st.binary(max_size=260) | st.binary(min_size=192, max_size=192))
def test_random_bytes_end_in_a_typed_error(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=PEER):
        wire.decode_hello(data, PEER)
    with pytest.raises(ProtocolError, match=PEER):
        wire.decode_reply(data[:128], PEER)


@given(
    st.sampled_from([HELLO, ANSWER]),
    st.integers(10, 123),
    st.binary(min_size=1, max_size=8),
)
def test_a_sealed_forgery_is_another_value_or_a_typed_error(
    value: Hello | Reply, at: int, new: bytes
) -> None:
    data = altered(value, at, new[: len(_encode(value)) - 4 - at])
    try:
        decoded = _decode(value)(data, PEER)
    except ProtocolError as exc:
        assert exc.peer == PEER  # noqa: PT017 - it may also decode
    else:
        assert _encode(decoded) == data


def test_a_hello_of_another_version_is_recognised_by_its_first_ten_bytes() -> None:
    other = altered(HELLO, 8, b"\2\0", seal=False)
    assert wire.speaks_other_version(other[:10])
    assert wire.speaks_other_version(bytearray(other))
    assert not wire.speaks_other_version(other[:9])
    assert not wire.speaks_other_version(_encode(HELLO))
    assert not wire.speaks_other_version(b"GET / HTTP/1.1\r\n")


def test_every_refusal_has_an_explanation() -> None:
    assert wire.EXPLANATION.keys() == set(Status) - {Status.OK}


def test_purposes_and_statuses_are_append_only() -> None:
    assert [(p.name, p.value) for p in Purpose][:3] == [
        ("CONTROL", 1),
        ("BULK", 2),
        ("SHM", 3),
    ]
    assert [(s.name, s.value) for s in Status][:8] == [
        ("OK", 0),
        ("BAD_VERSION", 1),
        ("WRONG_NAMESPACE", 2),
        ("WRONG_RANK", 4),
        ("WRONG_SIZE", 5),
        ("DUPLICATE", 6),
        ("WRONG_HOST", 7),
    ]
