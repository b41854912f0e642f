"""Numbers on the wire keep their meaning for ever: tables only grow at the end."""

from __future__ import annotations

import pytest

from ringleader.wire import control_frames, names

# Version 1 as it was first published. Names may be appended in names.py and then here.
PINNED = {
    "OPERATIONS": (
        "none all_reduce reduce broadcast all_gather gather scatter reduce_scatter "
        "all_to_all barrier send measure"
    ),
    "REDUCE_OPS": "none sum mean min max product band bor bxor",
    "DTYPES": (
        "none bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 "
        "complex64 complex128 complex32 uint16 uint32 uint64 float8_e4m3fn float8_e5m2 "
        "float8_e4m3fnuz float8_e5m2fnuz"
    ),
    "ALGORITHMS": "none exchange direct ring doubling halving tree star shm hierarchy",
    "CODECS": "none fp16 bf16 int8 onebit",
}


@pytest.mark.parametrize("table", PINNED)
def test_a_table_only_grows_at_its_end(table: str) -> None:
    pinned = tuple(PINNED[table].split())
    now: tuple[str, ...] = getattr(names, table)
    assert now[: len(pinned)] == pinned
    assert len(set(now)) == len(now) <= 256


def test_every_table_is_pinned() -> None:
    assert {name for name in vars(names) if name.isupper()} == PINNED.keys()


def test_kinds_and_blames_only_grow_at_their_end() -> None:
    assert [(kind.name, kind.value) for kind in control_frames.Kind][:6] == [
        ("BROKEN", 1),
        ("WAITING", 2),
        ("GOODBYE", 3),
        ("OFFER", 4),
        ("ACCEPT", 5),
        ("DATA", 6),
    ]
    assert control_frames.ERROR_NAMES[:6] == (
        "PeerLost",
        "DeadlineExceeded",
        "CallMismatch",
        "ProtocolError",
        "GroupAborted",
        "InternalError",
    )
