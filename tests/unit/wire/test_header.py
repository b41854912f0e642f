"""The operation header: 64 pinned bytes, and nothing but ProtocolError for others."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.errors import ProtocolError
from ringleader.wire import header, names
from ringleader.wire.header import Header

GOLDEN = Path(__file__).parent / "golden"
PEER = 3

EXAMPLE = Header(
    operation="all_reduce",
    group=0x1122334455667788,
    sequence=42,
    count=1_000_003,
    dtype="float32",
    reduce_op="sum",
    root=5,
    algorithm="tree",
    codec="none",
    arity=3,
)
BARRIER = Header(operation="barrier", group=1, sequence=2**64 - 1, count=0)

# The table of the module docstring, once more: offset, size, value in EXAMPLE.
FIELDS = [
    (0, 4, int.from_bytes(b"RLOP", "little")),
    (4, 1, 1),
    (5, 1, 1),
    (6, 1, 1),
    (7, 1, 9),
    (8, 8, 0x1122334455667788),
    (16, 8, 42),
    (24, 8, 1_000_003),
    (32, 4, 5),
    (36, 1, 6),
    (37, 1, 0),
    (38, 2, 3),
    (40, 4, 0),
    (44, 4, 0),
    (48, 16, 0),
]

headers = st.builds(
    Header,
    operation=st.sampled_from(names.OPERATIONS),
    group=st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 2**64 - 1),
    count=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from(names.DTYPES),
    reduce_op=st.sampled_from(names.REDUCE_OPS),
    root=st.none() | st.integers(0, 2**32 - 2),
    algorithm=st.sampled_from(names.ALGORITHMS),
    codec=st.sampled_from(names.CODECS),
    arity=st.integers(0, 2**16 - 1),
)


def altered(at: int, value: int) -> bytes:
    """The example with one byte changed."""
    data = bytearray(header.encode(EXAMPLE))
    data[at] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "value"), [("header", EXAMPLE), ("header-barrier", BARRIER)]
)
def test_the_bytes_of_version_1_are_pinned(name: str, value: Header) -> None:
    pinned = bytes.fromhex((GOLDEN / f"v1-{name}.hex").read_text())
    assert header.encode(value) == pinned
    assert header.decode(pinned, PEER) == value


def test_every_field_lies_where_the_table_says() -> None:
    data = header.encode(EXAMPLE)
    for offset, size, value in FIELDS:
        assert int.from_bytes(data[offset : offset + size], "little") == value
    assert sum(size for _, size, _ in FIELDS) == len(data) == header.HEADER_BYTES == 64


def test_the_offsets_that_the_hot_path_patches_are_right() -> None:
    data = bytearray(header.encode(EXAMPLE))
    struct.pack_into("<Q", data, header.SEQUENCE_OFFSET, 77)
    struct.pack_into("<Q", data, header.COUNT_OFFSET, 99)
    patched = header.decode(data, PEER)
    assert (patched.sequence, patched.count) == (77, 99)


@given(headers)
def test_what_is_encoded_is_decoded(value: Header) -> None:
    data = header.encode(value)
    assert header.decode(data, PEER) == value
    assert header.decode(memoryview(bytearray(data)), PEER) == value


def test_any_other_length_is_refused() -> None:
    for length in [*range(64), 65, 128]:
        data = (header.encode(EXAMPLE) * 2)[:length]
        with pytest.raises(
            ProtocolError, match=f"{length} bytes instead of 64"
        ) as caught:
            header.decode(data, PEER)
        assert caught.value.peer == PEER


@pytest.mark.parametrize("at", range(4))
def test_a_wrong_magic_is_refused(at: int) -> None:
    with pytest.raises(ProtocolError, match="magic"):
        header.decode(altered(at, 0x7F), PEER)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused(version: int) -> None:
    with pytest.raises(ProtocolError, match=f"version {version}, not 1"):
        header.decode(altered(4, version), PEER)


@pytest.mark.parametrize(
    ("at", "table", "what"),
    [
        (5, names.OPERATIONS, "operation"),
        (6, names.REDUCE_OPS, "reduce op"),
        (7, names.DTYPES, "dtype"),
        (36, names.ALGORITHMS, "algorithm"),
        (37, names.CODECS, "codec"),
    ],
)
def test_an_unknown_code_is_refused(at: int, table: tuple[str, ...], what: str) -> None:
    for code in (len(table), 255):
        with pytest.raises(ProtocolError, match=f"{what} code {code} is unknown"):
            header.decode(altered(at, code), PEER)
    header.decode(altered(at, len(table) - 1), PEER)


@pytest.mark.parametrize("at", range(48, 64))
def test_reserved_bytes_must_be_zero(at: int) -> None:
    with pytest.raises(ProtocolError, match="reserved bytes"):
        header.decode(altered(at, 1), PEER)


@given(st.binary(max_size=130) | st.binary(min_size=64, max_size=64))
def test_random_bytes_end_in_a_typed_error(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        header.decode(data, "10.0.0.9:4000")
    assert caught.value.peer == "10.0.0.9:4000"


@given(st.integers(0, 63), st.integers(0, 255))
def test_one_changed_byte_is_another_header_or_a_typed_error(at: int, to: int) -> None:
    data = altered(at, to)
    try:
        value = header.decode(data, PEER)
    except ProtocolError as exc:
        assert exc.peer == PEER  # noqa: PT017 - it may also decode
    else:
        assert header.encode(value) == data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (EXAMPLE, "all_reduce(1000003 x float32, sum, root 5, tree) #42"),
        (BARRIER, "barrier() #18446744073709551615"),
    ],
)
def test_a_header_reads_like_the_call(value: Header, text: str) -> None:
    assert str(value) == text
