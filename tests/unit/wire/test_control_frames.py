"""Mail frames: pinned bytes, bounded lengths, and ProtocolError for the rest."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader import errors
from ringleader.errors import ProtocolError, RingleaderError
from ringleader.wire import control_frames, names
from ringleader.wire.control_frames import Frame, Kind

GOLDEN = Path(__file__).parent / "golden"
PEER = 2

EXAMPLES = {
    Kind.BROKEN: Frame(kind=Kind.BROKEN, length=2048, code=5, rank=7),
    Kind.WAITING: Frame(kind=Kind.WAITING, length=64),
    Kind.GOODBYE: Frame(kind=Kind.GOODBYE),
    Kind.OFFER: Frame(
        kind=Kind.OFFER,
        length=12,
        dtype="float32",
        code=1,
        tag=-9,
        message=0x0102030405060708,
        count=3,
    ),
    Kind.ACCEPT: Frame(kind=Kind.ACCEPT, message=2**64 - 1),
    Kind.DATA: Frame(kind=Kind.DATA, length=1 << 20, message=6),
}

# The table of the module docstring, once more: offset, bytes in the OFFER above.
FIELDS = [
    (0, b"RLML"),
    (4, b"\1"),
    (5, b"\4"),
    (6, b"\x09"),
    (7, b"\1"),
    (8, b"\x0c\0\0\0"),
    (12, bytes(4)),
    (16, struct.pack("<q", -9)),
    (24, bytes.fromhex("0807060504030201")),
    (32, struct.pack("<Q", 3)),
    (40, bytes(8)),
]


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Any frame within its limits."""
    kind = draw(st.sampled_from(Kind))
    last_code = len(control_frames.ERROR_NAMES) - 1 if kind is Kind.BROKEN else 255
    return Frame(
        kind=kind,
        length=draw(st.integers(0, control_frames.LIMITS[kind])),
        dtype=draw(st.sampled_from(names.DTYPES)),
        code=draw(st.integers(0, last_code)),
        rank=draw(st.integers(0, 2**32 - 1)),
        tag=draw(st.integers(-(2**63), 2**63 - 1)),
        message=draw(st.integers(0, 2**64 - 1)),
        count=draw(st.integers(0, 2**64 - 1)),
    )


def altered(kind: Kind, at: int, new: bytes) -> bytes:
    """The example of ``kind`` with some bytes changed."""
    data = bytearray(control_frames.encode(EXAMPLES[kind]))
    data[at : at + len(new)] = new
    return bytes(data)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_the_bytes_of_version_1_are_pinned(kind: Kind) -> None:
    path = GOLDEN / f"v1-mail-{kind.name.lower()}.hex"
    pinned = bytes.fromhex(path.read_text())
    assert control_frames.encode(EXAMPLES[kind]) == pinned
    assert control_frames.decode(pinned, PEER) == EXAMPLES[kind]


def test_every_field_lies_where_the_table_says() -> None:
    data = control_frames.encode(EXAMPLES[Kind.OFFER])
    for offset, content in FIELDS:
        assert data[offset : offset + len(content)] == content
    assert (
        sum(len(c) for _, c in FIELDS) == len(data) == control_frames.FRAME_BYTES == 48
    )
    broken = control_frames.encode(EXAMPLES[Kind.BROKEN])
    assert (broken[7], broken[12:16]) == (5, b"\7\0\0\0")


@given(frames())
def test_what_is_encoded_is_decoded(frame: Frame) -> None:
    data = control_frames.encode(frame)
    assert control_frames.decode(data, PEER) == frame
    assert control_frames.decode(bytearray(data), PEER) == frame


def test_any_other_length_is_refused() -> None:
    for length in [*range(48), 49, 96]:
        data = (control_frames.encode(EXAMPLES[Kind.DATA]) * 2)[:length]
        with pytest.raises(
            ProtocolError, match=f"{length} bytes instead of 48"
        ) as caught:
            control_frames.decode(data, PEER)
        assert caught.value.peer == PEER


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_a_payload_beyond_the_limit_is_refused_before_it_is_read(kind: Kind) -> None:
    limit = control_frames.LIMITS[kind]
    control_frames.decode(altered(kind, 8, struct.pack("<I", limit)), PEER)
    for lie in (limit + 1, 2**31, 2**32 - 1):
        with pytest.raises(
            ProtocolError, match=f"{lie} bytes of payload, limit {limit}"
        ):
            control_frames.decode(altered(kind, 8, struct.pack("<I", lie)), PEER)


@pytest.mark.parametrize("at", range(5))
def test_a_wrong_magic_or_version_is_refused(at: int) -> None:
    with pytest.raises(ProtocolError, match="magic"):
        control_frames.decode(altered(Kind.GOODBYE, at, b"\x02"), PEER)


@pytest.mark.parametrize("code", [0, 7, 255])
def test_an_unknown_kind_is_refused(code: int) -> None:
    with pytest.raises(ProtocolError, match=f"kind {code} is unknown"):
        control_frames.decode(altered(Kind.GOODBYE, 5, bytes([code])), PEER)


@pytest.mark.parametrize("code", [len(names.DTYPES), 255])
def test_an_unknown_dtype_is_refused(code: int) -> None:
    with pytest.raises(ProtocolError, match="dtype"):
        control_frames.decode(altered(Kind.OFFER, 6, bytes([code])), PEER)


@pytest.mark.parametrize("code", [len(control_frames.ERROR_NAMES), 255])
def test_an_unknown_blame_is_refused(code: int) -> None:
    with pytest.raises(ProtocolError, match=f"error code {code} is unknown"):
        control_frames.decode(altered(Kind.BROKEN, 7, bytes([code])), PEER)


@pytest.mark.parametrize("at", range(40, 48))
def test_reserved_bytes_must_be_zero(at: int) -> None:
    with pytest.raises(ProtocolError, match="reserved"):
        control_frames.decode(altered(Kind.GOODBYE, at, b"\1"), PEER)


@given(st.binary(max_size=100) | st.binary(min_size=48, max_size=48))
def test_random_bytes_end_in_a_typed_error(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        control_frames.decode(data, PEER)
    assert caught.value.peer == PEER


@given(st.sampled_from(Kind), st.integers(5, 47), st.binary(min_size=1, max_size=8))
def test_a_forgery_is_another_frame_or_a_typed_error(
    kind: Kind, at: int, new: bytes
) -> None:
    data = altered(kind, at, new[: 48 - at])
    try:
        frame = control_frames.decode(data, PEER)
    except ProtocolError as exc:
        assert exc.peer == PEER  # noqa: PT017 - it may also decode
    else:
        assert control_frames.encode(frame) == data
        assert frame.length <= control_frames.LIMITS[frame.kind]


def test_every_kind_has_a_limit_and_none_is_larger_than_a_mebibyte() -> None:
    assert control_frames.LIMITS.keys() == set(Kind)
    assert max(control_frames.LIMITS.values()) == control_frames.DATA_BYTES == 1 << 20


def test_every_blame_is_an_error_of_ours() -> None:
    for name in control_frames.ERROR_NAMES:
        assert issubclass(getattr(errors, name), RingleaderError)
