"""Packing of sparse vectors, and the refusal of invalid data."""

from __future__ import annotations

import numpy as np
import pytest

from ringleader.compression.sparse_format import (
    BLOCK,
    Bytes,
    SparseVector,
    num_bytes,
    pack,
    unpack,
)
from ringleader.errors import ProtocolError

TOTAL = 3 * BLOCK + 100


def entries(*places: int) -> SparseVector:
    values = np.arange(1, len(places) + 1, dtype=np.float32)
    return SparseVector(np.array(places, np.int64), values)


@pytest.mark.parametrize(
    "places",
    [
        (),
        (0,),
        (TOTAL - 1,),
        (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK, TOTAL - 1),
        tuple(range(BLOCK)),
    ],
)
@pytest.mark.parametrize("begin", [0, 7 * BLOCK])
def test_what_was_packed_comes_back(places: tuple[int, ...], begin: int) -> None:
    mine = entries(*(place + begin for place in places))
    data = pack(mine, TOTAL, begin)
    assert len(data) == num_bytes(TOTAL, len(places))
    theirs = unpack(data, TOTAL, len(places), begin=begin, peer=1)
    assert theirs.indices.tolist() == mine.indices.tolist()
    assert theirs.values.tolist() == mine.values.tolist()


def test_the_bytes_are_these() -> None:
    data = pack(entries(2, BLOCK + 258), BLOCK + 300)
    counts = bytes([1, 0, 0, 0, 1, 0, 0, 0])
    values = bytes([0, 0, 0x80, 0x3F, 0, 0, 0, 0x40])
    places = bytes([2, 0, 2, 1])
    assert data.tobytes() == counts + values + places


def test_an_entry_takes_six_bytes() -> None:
    """64 MiB of float32, one per cent: the counts add a thousandth."""
    total, count = 1 << 24, (1 << 24) // 100
    assert 6 * count <= num_bytes(total, count) <= 6.01 * count


def test_values_that_are_not_finite_travel() -> None:
    odd = SparseVector(np.arange(3), np.array([np.nan, np.inf, -np.inf], np.float32))
    back = unpack(pack(odd, 10), 10, 3, peer=0)
    assert np.array_equal(back.values, odd.values, equal_nan=True)


def tampered(place: int, value: int) -> Bytes:
    data = pack(entries(2, 5, BLOCK + 1), TOTAL)
    data[place] = value
    return data


FIRST_PLACE = 4 * 4 + 3 * 4


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (0, 3, "do not add up"),  # one entry too many in the first block
        (0, 1, "do not add up"),
        (3, 255, "do not add up"),  # four thousand million entries
        (12, 1, "do not add up"),
        (FIRST_PLACE, 5, "do not ascend"),  # twice the same place
        (FIRST_PLACE, 6, "do not ascend"),
    ],
)
def test_other_bytes_are_refused(place: int, value: int, says: str) -> None:
    with pytest.raises(ProtocolError, match=f"rank 7: .*{says}"):
        unpack(tampered(place, value), TOTAL, 3, peer=7)


def test_a_place_beyond_the_end_is_refused() -> None:
    data = pack(entries(3 * BLOCK + 99), TOTAL)
    assert unpack(data, TOTAL, 1, peer=7).indices.tolist() == [TOTAL - 1]
    data[-2] = 100
    with pytest.raises(ProtocolError, match=f"rank 7: .*below {TOTAL}"):
        unpack(data, TOTAL, 1, peer=7)


def test_counts_whose_sum_wraps_around_are_refused() -> None:
    """uint32 counts that add up to the right number modulo 2**32."""
    data = pack(entries(1), TOTAL)
    counts = data[:16].view("<u4")
    counts[:] = [2**31, 2**31, 1, 0]
    with pytest.raises(ProtocolError, match="do not add up"):
        unpack(data, TOTAL, 1, peer=7)
